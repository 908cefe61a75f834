from __future__ import annotations

import asyncio
import uuid

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import NotFound
from kici.orchestrator.logs.reader import LogReader, Page
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.objects.contract import Objects
from tests.support import rows

LINES = [f"2026-01-02T03:04:05.678Z line {number} é" for number in range(95)]


@pytest.fixture
def reader(pool: Pool[Record], objects: Objects) -> LogReader:
    return LogReader(pool, objects)


async def send(writer: LogWriter, job: rows.Job, *sequences: int) -> None:
    sent = rows.chunked(job, LINES, 10)
    async with asyncio.timeout(10):
        for sequence in sequences:
            assert await writer.append(job.session_id, sent[sequence]) is None


async def everything(reader: LogReader, job: rows.Job, limit: int) -> list[str]:
    cursor: int | None = 0
    found: list[str] = []
    while cursor is not None:
        page = await reader.page(job.run_id, job.job_id, 0, cursor=cursor, limit=limit)
        assert len(page.lines) <= limit
        found += page.lines
        cursor = page.next_cursor
    return found


async def test_a_running_step_is_read_up_to_where_it_is(writer: LogWriter, reader: LogReader, job: rows.Job) -> None:
    await send(writer, job, 0, 1)
    assert await reader.page(job.run_id, job.job_id, 0, cursor=15) == Page(LINES[15:20], 20, False, 20)
    assert await reader.page(job.run_id, job.job_id, 0, cursor=20) == Page([], 20, False, 20)
    await send(writer, job, 2)
    assert (await reader.page(job.run_id, job.job_id, 0, cursor=20)).lines == LINES[20:30]


async def test_nothing_behind_a_gap_is_shown_before_the_gap_is_filled(
    writer: LogWriter, reader: LogReader, job: rows.Job
) -> None:
    await send(writer, job, 0, 2, 3)
    assert await reader.page(job.run_id, job.job_id, 0) == Page(LINES[:10], 10, False, 10)
    await send(writer, job, 1)
    assert (await reader.page(job.run_id, job.job_id, 0)).lines == LINES[:40]


@pytest.mark.parametrize("limit", [1, 7, 10, 500])
async def test_a_log_is_complete_when_all_announced_chunks_are_there(
    pool: Pool[Record], writer: LogWriter, reader: LogReader, job: rows.Job, limit: int
) -> None:
    await send(writer, job, *range(9))
    await rows.end_step(pool, job.step_ids[0], chunks=10)
    assert not (await reader.page(job.run_id, job.job_id, 0)).complete
    await send(writer, job, 9)
    async with asyncio.timeout(20):
        assert await everything(reader, job, limit) == LINES


async def test_each_attempt_has_its_own_log(
    pool: Pool[Record], writer: LogWriter, reader: LogReader, job: rows.Job
) -> None:
    await send(writer, job, 0)
    await pool.execute("update execution_jobs set attempt = 2, log_hour = log_hour + interval '1 hour'")
    await rows.add_step(pool, job.run_id, job.job_id, 0, "compile", attempt=2)
    async with asyncio.timeout(10):
        await writer.append(job.session_id, rows.chunk(job, 0, ["again"], first_line=0, attempt=2))
    assert (await reader.page(job.run_id, job.job_id, 0)).lines == ["again"]
    assert (await reader.page(job.run_id, job.job_id, 0, attempt=1)).lines == LINES[:10]


async def test_a_step_that_never_began_has_an_empty_log_that_is_complete(
    pool: Pool[Record], reader: LogReader, job: rows.Job
) -> None:
    await pool.execute("update execution_steps set status = 'skipped', started_at = null")
    assert await reader.page(job.run_id, job.job_id, 0) == Page([], 0, complete=True, next_cursor=None)


async def test_a_step_that_is_not_there_is_not_found(reader: LogReader, job: rows.Job) -> None:
    for run_id, job_id, index in [
        (job.run_id, job.job_id, 7),
        (str(uuid.uuid4()), job.job_id, 0),
        (job.run_id, str(uuid.uuid4()), 0),
    ]:
        with pytest.raises(NotFound):
            await reader.page(run_id, job_id, index)
