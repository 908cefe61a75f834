from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.logs import compact
from kici.orchestrator.logs.compact import CompactLogs, Pass, Settings
from kici.orchestrator.logs.reader import LogReader
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.directory_objects import DirectoryObjects
from kici.orchestrator.store import notify
from tests.support import rows
from tests.support.told import Told

LINES = [f"2026-01-02T03:04:05.678Z line {number}" for number in range(40)]
CLOSED = Pass(claimed=1, closed=1, waiting=0, failed=0)
WAITING = Pass(claimed=1, closed=0, waiting=1, failed=0)
NOTHING = Pass(claimed=0, closed=0, waiting=0, failed=0)
AT_ONCE = Settings(hold=timedelta(0))
"""A claim runs out at once, so that a test need not wait for it."""


class NoWakes:
    def subscribe(self, channel: str, callback: object) -> None:
        pass


class Killed(BaseException):
    """Like a kill -9: nothing of ours runs after it."""


def service(pool: Pool[Record], objects: Objects, settings: Settings = AT_ONCE, *, kill_at: str = "") -> CompactLogs:
    async def moment(name: str) -> None:
        if name == kill_at:
            raise Killed

    return CompactLogs(pool, objects, NoWakes(), Told(), settings, on_moment=moment)


async def ended(pool: Pool[Record], writer: LogWriter, job: rows.Job, *sequences: int, chunks: int | None = 4) -> None:
    """Step 0 has ended; of its log these chunks have come."""
    sent = rows.chunked(job, LINES, 10)
    async with asyncio.timeout(10):
        for sequence in sequences:
            assert await writer.append(job.session_id, sent[sequence]) is None
    await rows.end_step(pool, job.step_ids[0], chunks=chunks)
    async with pool.acquire() as db:
        await compact.put(db, job.step_ids[0])


async def due(pool: Pool[Record], *, age: timedelta = timedelta(0)) -> None:
    await pool.execute("update outbox set due_at = now(), created_at = now() - $1::interval", age)


async def lines(pool: Pool[Record], objects: Objects, job: rows.Job) -> list[str]:
    page = await LogReader(pool, objects).page(job.run_id, job.job_id, 0)
    assert page.complete
    return page.lines


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def test_the_chunks_become_one_object_that_reads_the_same(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, tmp_path: Path
) -> None:
    await ended(pool, writer, job, 0, 1, 2, 3)
    assert await service(pool, objects).run_once() == CLOSED
    row = await pool.fetchrow("select log_path, log_lines, log_bytes from execution_steps where step_index = 0")
    assert row is not None
    assert tuple(row) == (f"executions/{job.run_id}/job-build/step-0.log.zst", 40, sum(len(line) + 1 for line in LINES))
    await pool.execute("truncate log_chunks")
    assert await lines(pool, objects, job) == LINES
    assert files(tmp_path) == ["step-0.log.zst"]
    assert await pool.fetchval("select count(*) from outbox") == 0
    assert await service(pool, objects).run_once() == NOTHING


@pytest.mark.parametrize("moment", ["claimed", "uploaded", "closed", "cleaned"])
async def test_a_kill_at_any_moment_leaves_a_log_that_reads_the_same_and_one_object_in_the_end(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, tmp_path: Path, moment: str
) -> None:
    await ended(pool, writer, job, 0, 1, 2, 3)
    with pytest.raises(BaseExceptionGroup) as killed:
        await service(pool, objects, kill_at=moment).run_once()
    assert killed.group_contains(Killed)
    assert await lines(pool, objects, job) == LINES
    assert await service(pool, objects).run_once() == CLOSED
    assert await lines(pool, objects, job) == LINES
    assert len(files(tmp_path)) == 1
    assert await pool.fetchval("select count(*) from outbox") == 0


async def test_it_waits_for_chunks_that_are_still_on_their_way(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    await ended(pool, writer, job, 0, 2, 3)
    assert await service(pool, objects).run_once() == WAITING
    async with asyncio.timeout(10):
        await writer.append(job.session_id, rows.chunked(job, LINES, 10)[1])
    await due(pool)
    assert await service(pool, objects).run_once() == CLOSED
    assert await lines(pool, objects, job) == LINES


async def test_after_the_deadline_the_log_says_itself_what_is_missing(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    await ended(pool, writer, job, 0, 2)
    await due(pool, age=timedelta(minutes=16))
    assert await service(pool, objects).run_once() == CLOSED
    found = await lines(pool, objects, job)
    assert found[:10] == LINES[:10]
    assert "[kici] one piece of the log missing here" in found[10]
    assert found[11:21] == LINES[20:30]
    assert "[kici] one piece of the log missing here" in found[21]
    assert len(found) == 22


async def test_a_log_whose_agent_was_lost_is_closed_with_a_remark(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    await ended(pool, writer, job, 0, chunks=None)
    assert await service(pool, objects).run_once() == WAITING
    await due(pool, age=timedelta(seconds=6))
    assert await service(pool, objects).run_once() == CLOSED
    found = await lines(pool, objects, job)
    assert found[:10] == LINES[:10]
    assert found[10].endswith("[kici] the log may be incomplete: its agent was lost")


async def test_a_chunk_that_comes_during_the_upload_is_not_lost(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, tmp_path: Path
) -> None:
    await ended(pool, writer, job, 0, 1, 2)
    await due(pool, age=timedelta(minutes=16))

    async def late(moment: str) -> None:
        if moment == "uploaded":
            async with asyncio.timeout(10):
                await writer.append(job.session_id, rows.chunked(job, LINES, 10)[3])

    assert await CompactLogs(pool, objects, NoWakes(), Told(), AT_ONCE, on_moment=late).run_once() == WAITING
    assert await service(pool, objects).run_once() == CLOSED
    assert await lines(pool, objects, job) == LINES
    assert len(files(tmp_path)) == 1


async def test_two_coordinators_on_the_same_log_leave_one_object(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, tmp_path: Path
) -> None:
    await ended(pool, writer, job, 0, 1, 2, 3)
    other = service(pool, objects)

    async def overtaken(moment: str) -> None:
        if moment == "uploaded":
            assert await other.run_once() == CLOSED

    async with asyncio.timeout(20):
        await CompactLogs(pool, objects, NoWakes(), Told(), AT_ONCE, on_moment=overtaken).run_once()
    assert await lines(pool, objects, job) == LINES
    assert len(files(tmp_path)) == 1


async def test_a_step_without_output_makes_no_object(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, tmp_path: Path
) -> None:
    await ended(pool, writer, job, chunks=0)
    assert await service(pool, objects).run_once() == CLOSED
    assert await lines(pool, objects, job) == []
    assert files(tmp_path) == []


async def test_a_store_that_is_away_costs_time_only(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    class Away(DirectoryObjects):
        async def put(self, *args: object, **kwargs: object) -> None:
            raise Unavailable("the object store cannot be used now")

    await ended(pool, writer, job, 0, 1, 2, 3)
    away = Away.__new__(Away)
    assert (await service(pool, away).run_once()).failed == 1
    assert await pool.fetchval("select last_error from outbox") == "the object store cannot be used now"
    assert await lines(pool, objects, job) == LINES
    await due(pool)
    assert await service(pool, objects).run_once() == CLOSED


async def test_a_log_beyond_eight_megabytes_goes_through_in_pieces(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    text = [f"2026-01-02T03:04:05.678Z {os.urandom(500).hex()}" for _ in range(12_000)]
    sent = rows.chunked(job, text, 100)
    async with asyncio.timeout(60):
        await asyncio.gather(*(writer.append(job.session_id, chunk) for chunk in sent))
    await rows.end_step(pool, job.step_ids[0], chunks=len(sent))
    async with pool.acquire() as db:
        await compact.put(db, job.step_ids[0])
    assert await service(pool, objects, Settings(read_chunks=8)).run_once() == CLOSED
    await pool.execute("truncate log_chunks")
    reader = LogReader(pool, objects)
    assert (await reader.page(job.run_id, job.job_id, 0, cursor=11_990)).lines == text[11_990:]
    assert (await reader.page(job.run_id, job.job_id, 0, cursor=0, limit=3)).lines == text[:3]


async def test_the_service_is_woken_and_comes_back_for_what_was_too_early(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    wakes = {}

    class Wakes:
        def subscribe(self, channel: str, callback: object) -> None:
            wakes[channel] = callback

    passes: asyncio.Queue[Pass] = asyncio.Queue()
    compactor = CompactLogs(
        pool, objects, Wakes(), Told(), Settings(interval=timedelta(hours=1)), on_pass=passes.put_nowait
    )
    running = asyncio.create_task(compactor.run())
    try:
        async with asyncio.timeout(20):
            assert await passes.get() == NOTHING
            await ended(pool, writer, job, 0, 1, 2)
            await pool.execute("update outbox set due_at = now() + interval '0.3 seconds'")
            wakes[notify.OUTBOX]({"compact_log"})  # type: ignore[operator]
            assert await passes.get() == NOTHING
            assert await passes.get() == WAITING
            await writer.append(job.session_id, rows.chunked(job, LINES, 10)[3])
            while await passes.get() != CLOSED:
                pass
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert await lines(pool, objects, job) == LINES
