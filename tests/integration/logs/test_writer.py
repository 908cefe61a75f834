from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import pytest
import zstandard
from asyncpg import LockNotAvailableError, Pool, Record
from msgspec.structs import replace

from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.store import logs, notify
from tests.support import rows
from tests.support.told import Told


async def stored(pool: Pool[Record], job: rows.Job) -> list[tuple[int, int]]:
    found = await pool.fetch(
        "select step_index, sequence from log_chunks where job_id = $1 order by step_index, sequence", job.job_id
    )
    return [(row["step_index"], row["sequence"]) for row in found]


async def test_a_chunk_is_there_once_it_is_answered_and_somebody_is_told(
    pool: Pool[Record], writer: LogWriter, job: rows.Job, told: Told
) -> None:
    async with asyncio.timeout(10):
        assert await writer.append(job.session_id, rows.chunk(job, 0, ["a", "b"], first_line=0)) is None
    assert await stored(pool, job) == [(0, 0)]
    assert told.sent == [(notify.LOGS, job.job_id)]


async def test_chunks_may_come_twice_and_in_any_order(pool: Pool[Record], writer: LogWriter, job: rows.Job) -> None:
    sent = rows.chunked(job, [str(number) for number in range(100)], 10)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(writer.append(job.session_id, chunk) for chunk in [*reversed(sent), *sent]))
        assert await writer.append(job.session_id, sent[3]) is None
    assert set(answers) == {None}
    assert await stored(pool, job) == [(0, number) for number in range(10)]


async def test_an_older_attempt_and_a_foreign_agent_are_refused(
    pool: Pool[Record], writer: LogWriter, job: rows.Job
) -> None:
    stranger = await rows.add_session(pool, "agent-2")
    back = await rows.add_session(pool, "agent-1")
    await pool.execute("update execution_jobs set attempt = 2 where job_id = $1", job.job_id)
    async with asyncio.timeout(10):
        late = await writer.append(job.session_id, rows.chunk(job, 0, ["x"], first_line=0, attempt=1))
        foreign = await writer.append(stranger, rows.chunk(job, 0, ["x"], first_line=0, attempt=2))
        unknown = await writer.append(
            job.session_id, replace(rows.chunk(job, 0, ["x"], first_line=0), job_id=str(uuid.uuid4()))
        )
        own = await writer.append(back, rows.chunk(job, 0, ["x"], first_line=0, attempt=2))
    assert late == "attempt 1 is over: the job is at attempt 2"
    assert foreign == "another agent has this job"
    assert unknown is not None
    assert unknown.startswith("there is no job")
    assert own is None
    assert await stored(pool, job) == [(0, 0)]


async def test_an_ended_job_still_takes_the_chunks_of_its_last_attempt(
    pool: Pool[Record], writer: LogWriter, job: rows.Job
) -> None:
    await pool.execute("update execution_jobs set status = 'success', completed_at = now()")
    async with asyncio.timeout(10):
        assert await writer.append(job.session_id, rows.chunk(job, 0, ["x"], first_line=0)) is None


async def test_a_closed_log_takes_nothing_more(pool: Pool[Record], writer: LogWriter, job: rows.Job) -> None:
    await pool.execute("update execution_steps set log_lines = 0 where step_index = 0")
    async with asyncio.timeout(10):
        answers = await asyncio.gather(
            writer.append(job.session_id, rows.chunk(job, 0, ["x"], first_line=0)),
            writer.append(job.session_id, rows.chunk(job, 0, ["y"], first_line=0, step_index=1)),
            writer.append(job.session_id, rows.chunk(job, 0, ["z"], first_line=0, step_index=-1)),
        )
    assert list(answers) == ["the log of this step is closed", None, None]
    assert await stored(pool, job) == [(-1, 0), (1, 0)]


async def test_a_log_is_not_closed_while_a_chunk_of_it_is_stored(pool: Pool[Record], job: rows.Job) -> None:
    chunk = rows.chunk(job, 0, ["x"], first_line=0)
    sent = logs.Sent(
        session_id=job.session_id,
        job_id=chunk.job_id,
        attempt=chunk.attempt,
        step_index=chunk.step_index,
        sequence=chunk.sequence,
        first_line=chunk.first_line,
        lines=chunk.lines,
        data=chunk.data,
    )
    async with pool.acquire() as db, db.transaction():
        for hour in await logs.hours_of(db, [job.job_id]):
            await logs.create_partition(db, hour)
        assert await logs.append(db, [sent]) == [None]
        with pytest.raises(LockNotAvailableError):
            await pool.execute("select from execution_steps where id = $1 for update nowait", job.step_ids[0])


async def test_what_is_not_a_chunk_is_refused_and_harms_nobody(
    pool: Pool[Record], writer: LogWriter, job: rows.Job
) -> None:
    good = rows.chunk(job, 0, ["x"], first_line=0)
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    bad = [
        replace(good, data=b"no zstd"),
        replace(good, data=bomb),
        replace(good, lines=0),
        replace(good, first_line=2**31),
        replace(good, sequence=-1),
        replace(good, step_index=-2),
        replace(good, job_id="'; drop table log_chunks; --"),
    ]
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(writer.append(job.session_id, chunk) for chunk in [*bad, good]))
    assert [answer is None for answer in answers] == [False] * len(bad) + [True]


async def test_many_coordinators_may_make_the_same_partition_at_once(pool: Pool[Record]) -> None:
    hour = datetime(2026, 1, 2, 3, tzinfo=UTC)

    async def create() -> None:
        async with pool.acquire() as db, db.transaction():
            await logs.create_partition(db, hour)

    async with asyncio.timeout(20):
        await asyncio.gather(*(create() for _ in range(8)))
    async with pool.acquire() as db:
        assert await logs.partitions(db) == [hour]


async def test_a_partition_that_was_dropped_is_made_again(pool: Pool[Record], writer: LogWriter, job: rows.Job) -> None:
    async with asyncio.timeout(10):
        await writer.append(job.session_id, rows.chunk(job, 0, ["x"], first_line=0))
        async with pool.acquire() as db, db.transaction():
            (hour,) = await logs.partitions(db)
            await logs.drop_partition(db, hour)
        assert await writer.append(job.session_id, rows.chunk(job, 1, ["y"], first_line=1)) is None
    assert await stored(pool, job) == [(0, 1)]


@pytest.mark.parametrize("with_hour", [True, False])
async def test_reading_a_step_walks_an_index(pool: Pool[Record], job: rows.Job, with_hour: bool) -> None:
    async with pool.acquire() as db:
        hour: datetime = await db.fetchval("select date_trunc('hour', now())")
        for back in range(3):
            async with db.transaction():
                await logs.create_partition(db, hour - back * logs.HOUR)
        await db.execute(
            """
            insert into log_chunks select date_trunc('hour', now()) - (n % 3) * interval '1 hour', gen_random_uuid(), 1,
              n % 10, n, 0, 1, 'x' from generate_series(1, 30000) n
            """
        )
        await db.execute("analyze log_chunks")
        step = await logs.step(db, job.job_id, 0)
        assert step
        if not with_hour:
            step = replace(step, log_hour=None)
        condition = logs._of(step)
        plan = await db.fetchval(
            f"explain (analyze, buffers, format json) select bytes from log_chunks where {condition} and sequence >= 5",
            *logs._values(step),
        )
    text = str(plan)
    assert "Seq Scan" not in text
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 20
