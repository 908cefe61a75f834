from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kici.agent.log_stream import CHUNK_BYTES, LINE_BYTES, StepLog, Tail
from kici.agent.masking import Secrets
from kici.agent.outbox import Outbox
from kici.wire.agent import Ack, AttemptRef, LogChunk

STAMP = b"2026-01-02T03:04:05.678Z "
NOW = 1767323045.678


class Reader:
    """Takes what the outbox sends and acknowledges it."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.chunks: list[LogChunk] = []

    async def read(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.chunks) < count:
                frame = await self.outbox.next()
                assert isinstance(frame.body, LogChunk)
                self.chunks.append(frame.body)
                self.outbox.settle(Ack((frame.seq,)))

    def lines(self) -> list[bytes]:
        text = b"".join(zstandard.ZstdDecompressor().decompress(chunk.data) for chunk in self.chunks)
        assert text.endswith(b"\n")
        lines = text[:-1].split(b"\n")
        assert all(line.startswith(STAMP) for line in lines)
        return [line.removeprefix(STAMP) for line in lines]


def step_log(reader: Reader, secrets: Iterable[str] = (), limit: int = 10_000_000) -> StepLog:
    ref = AttemptRef("job", 1)
    return StepLog(reader.outbox, ref, 0, Secrets(secrets), limit_bytes=limit, now=lambda: NOW)


async def written(*pieces: bytes, secrets: Iterable[str] = (), limit: int = 10_000_000) -> list[bytes]:
    reader = Reader()
    log = step_log(reader, secrets, limit)
    for piece in pieces:
        await log.write(piece)
    await reader.read(log.close())
    for number, chunk in enumerate(reader.chunks):
        assert chunk.sequence == number
        assert chunk.first_line == sum(before.lines for before in reader.chunks[:number])
    return reader.lines()


async def test_lines_carry_their_time_and_an_unfinished_one_is_ended() -> None:
    assert await written(b"one\ntw", b"o\n\nthr", b"ee") == [b"one", b"two", b"", b"three"]


async def test_a_secret_across_two_writes_is_masked() -> None:
    assert await written(b"it is hun", b"ter2!\n", secrets=["hunter2"]) == [b"it is ***!"]


async def test_a_line_without_end_is_cut_between_characters() -> None:
    euros = "€".encode() * LINE_BYTES
    lines = await written(*(euros[start : start + 50_000] for start in range(0, len(euros), 50_000)))
    assert b"".join(lines) == euros
    assert all(len(line) <= LINE_BYTES for line in lines)
    assert all("\ufffd" not in line.decode() for line in lines)


async def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert await written(b"a\xff\n") == ["a\ufffd".encode()]


TOO_LONG = b"[TRUNCATED: log output exceeded 25 bytes; its last lines follow when the step has ended]"


async def test_of_output_beyond_the_limit_head_and_tail_are_kept_and_what_is_missing_is_counted() -> None:
    pieces = [b"%09d\n" % number for number in range(9)]
    assert await written(*pieces, limit=25) == [
        b"000000000",
        b"000000001",
        TOO_LONG,
        b"[TRUNCATED: 50 bytes in 5 lines were dropped here]",
        b"000000007",
        b"000000008",
    ]


async def test_nothing_is_missing_where_head_and_tail_meet() -> None:
    assert await written(b"0123456789\n" * 4, limit=25) == [*[b"0123456789"] * 2, TOO_LONG, *[b"0123456789"] * 2]


async def test_the_words_that_a_step_s_log_ends_with_are_in_its_tail() -> None:
    reader = Reader()
    log = step_log(reader, limit=25)
    await log.write(b"0123456789\n" * 50)
    log.say("exit code 3")
    await reader.read(log.close())
    assert reader.lines()[-1] == b"exit code 3"


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 200), st.booleans())
def test_a_tail_is_the_longest_end_in_whole_lines_within_its_limit(
    parts: list[bytes], limit: int, close_together: bool
) -> None:
    tail, whole = Tail(limit), b""
    for number, part in enumerate(parts):
        complete = part + b"\n"
        tail.put(complete, number * (0.01 if close_together else 10.0))
        whole += complete
    kept = b"".join(complete for complete, _ in tail.pieces())
    lines = [one + b"\n" for one in whole.split(b"\n")[:-1]]
    fitting: list[bytes] = []
    while lines and sum(map(len, fitting)) + len(lines[-1]) <= limit:
        fitting.insert(0, lines.pop())
    assert kept == b"".join(fitting)
    assert (tail.dropped_bytes, tail.dropped_lines) == (len(whole) - len(kept), len(lines))


async def test_a_chunk_leaves_by_itself_after_a_short_time() -> None:
    reader = Reader()
    log = step_log(reader)
    await log.write(b"hello\n")
    await reader.read(1)
    assert reader.lines() == [b"hello"]
    assert log.close() == 1


async def test_much_output_goes_in_chunks_of_bounded_size() -> None:
    reader = Reader()
    log = step_log(reader)
    await log.write(b"x" * 99 + b"\n" + b"\n" * 10_000)
    assert log.close() == 2
    await reader.read(2)
    sizes = [len(zstandard.ZstdDecompressor().decompress(chunk.data)) for chunk in reader.chunks]
    assert all(size <= CHUNK_BYTES for size in sizes)
    assert len(reader.lines()) == 10_001


async def test_what_is_written_after_the_end_is_dropped() -> None:
    reader = Reader()
    log = step_log(reader)
    log.say("first")
    assert log.close() == 1
    await log.write(b"late\n")
    log.say("later")
    assert log.close() == 1


async def test_our_own_words_stand_on_lines_of_their_own_and_are_masked() -> None:
    reader = Reader()
    log = step_log(reader, ["hunter2"])
    await log.write(b"half")
    log.say("failed with hunter2")
    await log.write(b"rest\n")
    await reader.read(log.close())
    assert reader.lines() == [b"half", b"failed with ***", b"rest"]


@pytest.mark.parametrize("size", [LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 3 * LINE_BYTES])
async def test_long_lines_keep_all_their_bytes(size: int) -> None:
    lines = await written(b"a\n" + b"x" * size + b"\nb\n")
    assert lines[0] == b"a"
    assert lines[-1] == b"b"
    assert b"".join(lines[1:-1]) == b"x" * size


@given(st.lists(st.text("ab\n€", max_size=30), max_size=10))
def test_no_text_is_lost(texts: list[str]) -> None:
    whole = "".join(texts).encode()
    if whole:
        lines = asyncio.run(written(*(text.encode() for text in texts)))
        assert b"\n".join(lines) == whole.removesuffix(b"\n")


async def test_a_line_of_just_the_greatest_length_stays_whole_among_others() -> None:
    reader = Reader()
    log = step_log(reader)
    whole, long = b"x" * LINE_BYTES, b"y" * (LINE_BYTES + 1)
    await log.write(b"a\n" + whole + b"\nb\n" + long + b"\nc\n" + whole + b"\n")
    await reader.read(log.close())
    assert reader.lines() == [b"a", whole, b"b", long[:-1], b"y", b"c", whole]
