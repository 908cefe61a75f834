from __future__ import annotations

import asyncio

from kici.agent.outbox import BUFFER_BYTES, Frame, Outbox
from kici.wire.agent import LOG_CHUNK_BYTES, LOG_WINDOW_BYTES, Ack, AttemptRef, JobAccepted, JobStatusChanged, LogChunk

QUARTER = bytes(LOG_WINDOW_BYTES // 4 - LOG_CHUNK_BYTES)


def chunk(sequence: int, data: bytes = b"x", job: str = "j", step: int = 0) -> LogChunk:
    return LogChunk(job, 1, step, sequence, first_line=sequence, lines=1, data=data)


async def take(outbox: Outbox) -> Frame:
    async with asyncio.timeout(5):
        return await outbox.next()


async def is_quiet(outbox: Outbox) -> bool:
    waiting = asyncio.ensure_future(outbox.next())
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting.cancel()


async def test_a_status_overtakes_logs_and_numbers_grow_in_the_order_of_sending() -> None:
    outbox = Outbox()
    outbox.put_log(chunk(0))
    outbox.put(JobAccepted("j", 1))
    first, second = await take(outbox), await take(outbox)
    assert (type(first.body), first.seq) == (JobAccepted, 1)
    assert (type(second.body), second.seq) == (LogChunk, 2)


async def test_after_a_lost_connection_the_unacknowledged_go_again_with_their_numbers_before_new_ones() -> None:
    outbox = Outbox()
    outbox.put(JobAccepted("j", 1))
    for sequence in range(3):
        outbox.put_log(chunk(sequence))
    sent = [await take(outbox) for _ in range(4)]
    outbox.settle(Ack((2,)))
    outbox.rewind()
    outbox.put_log(chunk(3))
    again = [await take(outbox) for _ in range(4)]
    assert again[:3] == [sent[0], sent[2], sent[3]]
    assert [frame.seq for frame in again] == [1, 3, 4, 5]


async def test_logs_of_a_job_stay_within_their_window_and_do_not_hold_up_another_job() -> None:
    outbox = Outbox()
    for sequence in range(6):
        outbox.put_log(chunk(sequence, QUARTER))
    outbox.put_log(chunk(0, job="k"))
    sent = [await take(outbox) for _ in range(5)]
    assert [frame.body.job_id for frame in sent] == ["j", "k", "j", "j", "j"]
    assert await is_quiet(outbox)
    outbox.settle(Ack((sent[0].seq,)))
    assert (await take(outbox)).body == chunk(4, QUARTER)


async def test_the_orchestrator_sets_the_window_until_the_connection_is_lost() -> None:
    outbox = Outbox()
    for sequence in range(9):
        outbox.put_log(chunk(sequence, QUARTER))
    outbox.set_window(2 * LOG_WINDOW_BYTES)
    for _ in range(8):
        await take(outbox)
    assert await is_quiet(outbox)
    outbox.rewind()
    again = [await take(outbox) for _ in range(4)]
    assert [frame.seq for frame in again] == [1, 2, 3, 4]
    assert await is_quiet(outbox)


async def test_a_job_of_many_small_steps_is_bounded_like_one_of_a_single_step() -> None:
    outbox = Outbox()
    for step in range(BUFFER_BYTES // LOG_CHUNK_BYTES):
        outbox.put_log(chunk(0, step=step))
    writer = asyncio.ensure_future(outbox.room(AttemptRef("j", 1)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writer.done()
    writer.cancel()


async def test_a_chunk_that_is_larger_than_the_window_still_goes() -> None:
    outbox = Outbox()
    outbox.put_log(chunk(0, bytes(2 * LOG_WINDOW_BYTES)))
    assert (await take(outbox)).seq == 1


async def test_a_writer_waits_when_too_much_is_unacknowledged_and_goes_on_after_an_acknowledgement() -> None:
    outbox = Outbox()
    count = BUFFER_BYTES // (LOG_WINDOW_BYTES // 4)
    for sequence in range(count):
        outbox.put_log(chunk(sequence, QUARTER))
    writer = asyncio.ensure_future(outbox.room(AttemptRef("j", 1)))
    frame = await take(outbox)
    assert not writer.done()
    outbox.settle(Ack((frame.seq,)))
    async with asyncio.timeout(5):
        await writer


async def test_a_refused_frame_is_not_sent_again_and_tells_why() -> None:
    outbox = Outbox()
    frame = outbox.put(JobAccepted("j", 1))
    await take(outbox)
    outbox.settle(Ack((), ((1, "an older attempt"),)))
    assert await frame.outcome == "an older attempt"
    outbox.rewind()
    assert await is_quiet(outbox)


async def test_a_withdrawn_attempt_leaves_nothing_behind_and_wakes_its_writer() -> None:
    outbox = Outbox()
    frames = [outbox.put(JobAccepted("j", 1)), outbox.put(JobStatusChanged("j", 1, "failed", 0))]
    await take(outbox)
    for sequence in range(2 * BUFFER_BYTES // (LOG_WINDOW_BYTES // 4)):
        outbox.put_log(chunk(sequence, QUARTER))
    other = outbox.put(JobAccepted("other", 1))
    writer = asyncio.ensure_future(outbox.room(AttemptRef("j", 1)))
    outbox.withdraw(AttemptRef("j", 1))
    outbox.rewind()
    assert (await take(outbox)) is other
    assert await is_quiet(outbox)
    async with asyncio.timeout(5):
        await writer
        assert [await frame.outcome for frame in frames] == ["withdrawn", "withdrawn"]
    outbox.settle(Ack((other.seq,)))
    async with asyncio.timeout(5):
        await outbox.empty()


async def test_an_acknowledgement_of_something_unknown_changes_nothing() -> None:
    outbox = Outbox()
    outbox.settle(Ack((7,)))
    outbox.put(JobAccepted("j", 1))
    assert (await take(outbox)).seq == 1
