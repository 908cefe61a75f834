from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.logs.drop_partitions import DropLogPartitions, Pass, Settings
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.store import lease, logs
from tests.support import rows

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def held(pool: Pool[Record]) -> lease.Lease:
    async with pool.acquire() as db:
        taken = await lease.acquire(db, "drop_log_partitions", "coordinator-a", MINUTE)
    assert taken
    return taken


async def a_step_of(pool: Pool[Record], writer: LogWriter, hours_ago: int) -> rows.Job:
    """One chunk of a step whose attempt began so long ago and that has ended."""
    hour: datetime = await pool.fetchval("select date_trunc('hour', now()) - $1 * interval '1 hour'", hours_ago)
    job = await rows.add_job(pool, await rows.add_run(pool), log_hour=hour)
    async with asyncio.timeout(10):
        assert await writer.append(job.session_id, rows.chunk(job, 0, ["x"], first_line=0)) is None
    await rows.end_step(pool, job.step_ids[0], chunks=1)
    return job


async def close(pool: Pool[Record], job: rows.Job) -> None:
    await pool.execute("update execution_steps set log_lines = 1 where id = $1", job.step_ids[0])


async def hours_ago(pool: Pool[Record]) -> list[int]:
    async with pool.acquire() as db:
        now: datetime = await db.fetchval("select date_trunc('hour', now())")
        return [round((now.astimezone(UTC) - hour) / logs.HOUR) for hour in await logs.partitions(db)]


async def test_an_hour_goes_when_it_is_old_and_all_in_it_is_compacted(
    pool: Pool[Record], writer: LogWriter, held: lease.Lease
) -> None:
    old, other, young = [await a_step_of(pool, writer, ago) for ago in (30, 29, 3)]
    for job in (old, young):
        await close(pool, job)
    done = await DropLogPartitions(pool, held, Settings()).run_once()
    assert done == Pass(dropped=1, kept=1, reminded=1)
    assert await hours_ago(pool) == [29, 3]
    assert await pool.fetchval("select target from outbox") == other.step_ids[0]
    await close(pool, other)
    assert await DropLogPartitions(pool, held, Settings()).run_once() == Pass(dropped=1, kept=0, reminded=0)


async def test_a_job_that_still_runs_keeps_its_hour(pool: Pool[Record], writer: LogWriter, held: lease.Lease) -> None:
    job = await a_step_of(pool, writer, 40)
    await close(pool, job)
    async with asyncio.timeout(10):
        await writer.append(job.session_id, rows.chunk(job, 0, ["preparing"], first_line=0, step_index=-1))
    assert (await DropLogPartitions(pool, held, Settings()).run_once()).kept == 1
    await pool.execute("update execution_jobs set status = 'success', completed_at = now()")
    assert (await DropLogPartitions(pool, held, Settings()).run_once()).dropped == 1


async def test_a_leader_that_was_replaced_drops_nothing(
    pool: Pool[Record], writer: LogWriter, held: lease.Lease
) -> None:
    await close(pool, await a_step_of(pool, writer, 40))
    await pool.execute("update leases set expires_at = now() - interval '1 second'")
    async with pool.acquire() as db:
        assert await lease.acquire(db, held.name, "coordinator-b", MINUTE)
    with pytest.raises(LeaseLost):
        await DropLogPartitions(pool, held, Settings()).run_once()
    assert await hours_ago(pool) == [40]


async def test_a_reader_is_not_held_up_and_not_cut_off(
    pool: Pool[Record], writer: LogWriter, held: lease.Lease
) -> None:
    await close(pool, await a_step_of(pool, writer, 40))
    async with asyncio.timeout(10), pool.acquire() as db:
        async with db.transaction():
            await db.execute("select count(*) from log_chunks")
            assert await DropLogPartitions(pool, held, Settings()).run_once() == Pass(dropped=0, kept=1, reminded=0)
        assert await DropLogPartitions(pool, held, Settings()).run_once() == Pass(dropped=1, kept=0, reminded=0)
