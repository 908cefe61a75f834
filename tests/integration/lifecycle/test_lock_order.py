"""Rows are locked in one order by everybody: agent session, scope of concurrency groups, run, job, queue row, each by
id. Whoever waits for one holds those before it and none behind it, so nobody waits in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_jobs, lock_runs
from kici.orchestrator.store import jobs, queue, run_states, sessions
from kici.orchestrator.store.database import Db
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until

Lock = Callable[[Db, Sequence[str]], Awaitable[object]]

SCOPE = "select pg_try_advisory_xact_lock(hashtextextended('concurrency ' || concurrency_scope, 0)) from execution_runs"
RUN = "select count(*) = 1 from (select from execution_runs for update skip locked) free"
JOB = "select count(*) = 1 from (select from execution_jobs for update skip locked) free"
ROW = "select count(*) = 1 from (select from dispatch_queue for update skip locked) free"
ORDER = (SCOPE, RUN, JOB, ROW)
"""Each says whether the lock is free, and takes it until the transaction ends if it is."""


@asynccontextmanager
async def waiting(pool: Pool[Record], lock: Callable[[Db], Awaitable[object]]) -> AsyncIterator[None]:
    """Somebody who asks for locks of which one is taken, at the moment when he waits for that."""

    async def ask() -> None:
        async with pool.acquire() as db, db.transaction():
            await lock(db)

    asking = asyncio.create_task(ask())

    async def waits() -> bool:
        return bool(await pool.fetchval("select count(*) > 0 from pg_locks where not granted"))

    try:
        await until(waits)
        yield
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def is_free(pool: Pool[Record], probe: str) -> bool:
    async with pool.acquire() as db, db.transaction():
        return bool(await db.fetchval(probe))


@pytest.mark.parametrize(
    ("table", "key", "lock"),
    [
        ("execution_runs", "run_id", run_states.lock),
        ("execution_jobs", "job_id", jobs.lock),
        ("dispatch_queue", "id", queue.lock),
        ("agent_sessions", "id", sessions.lock),
    ],
)
async def test_rows_of_one_table_are_locked_by_their_ids(rig: Rig, table: str, key: str, lock: Lock) -> None:
    for number in range(5):
        await rig.make(job("build"))
        await rig.session(f"agent-{number}")
    ids = [row["id"] for row in await rig.pool.fetch(f"select {key} as id from {table} order by {key}")]
    async with rig.pool.acquire() as holder, holder.transaction():
        await holder.execute(f"select from {table} where {key} = $1 for update", ids[2])
        async with waiting(rig.pool, lambda db: lock(db, ids)):
            free = await rig.pool.fetch(f"select {key} as id from {table} order by {key} for update skip locked")
            assert [row["id"] for row in free] == ids[3:]


@pytest.mark.parametrize("taken", ORDER)
@pytest.mark.parametrize("which", ["lock_jobs", "lock_runs"])
async def test_the_kinds_of_rows_are_locked_in_one_order(pool: Pool[Record], taken: str, which: str) -> None:
    made = await make_run(pool, [job("build")])
    await pool.execute("update execution_runs set concurrency_scope = 'somewhere', concurrency_group = 'deploy'")

    async def lock(db: Db) -> object:
        if which == "lock_jobs":
            return await lock_jobs(db, Limits(), [made["build"]])
        return await lock_runs(db, Limits(), [made.run_id])

    async with pool.acquire() as holder, holder.transaction():
        assert await holder.fetchval(taken)
        async with waiting(pool, lock):
            place = ORDER.index(taken)
            assert [await is_free(pool, probe) for probe in ORDER[:place]] == [False] * place
            assert all([await is_free(pool, probe) for probe in ORDER[place + 1 :]])
