"""A coordinator is killed while 10,000 jobs run, and started again: how long until all of them have their session.

From the first answer of the new process (its start is `up_ready_ms`) until every running job belongs to a session of
it. The floor moves as many jobs to another session in one statement.
"""

from __future__ import annotations

import asyncio
import time
import uuid

from tests.bench import load
from tests.bench.harness import Result, compare
from tests.bench.load import Backlog, Coordinator

NAMES = ("recovery_10k_ms",)
AGENTS = 100
SLOTS = 100
JOBS = AGENTS * SLOTS
ROUNDS = 5


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    ours: list[float] = []
    floor: list[float] = []
    async with load.server() as url:
        database = await load.database(url, "ours")
        async with (
            load.backlog(database) as backlog,
            load.coordinator(database) as coordinator,
            load.agents(coordinator, count=AGENTS, slots=SLOTS, steps=0),
        ):
            await backlog.release(await backlog.make(JOBS))
            await until_running(backlog)
            await backlog.pool.execute("analyze")
            await one_update(backlog)
            await restart(backlog, coordinator)
            for _ in range(ROUNDS):
                floor.append(await one_update(backlog))
                ours.append(await restart(backlog, coordinator))
    return [compare("recovery_10k_ms", ours, "one UPDATE of 10,000 jobs", floor, limit=10)]


async def until_running(backlog: Backlog) -> None:
    async with asyncio.timeout(120):
        while await backlog.pool.fetchval("select count(*) from execution_jobs where status = 'running'") < JOBS:
            await asyncio.sleep(0.1)


async def restart(backlog: Backlog, coordinator: Coordinator) -> float:
    """Milliseconds."""
    await coordinator.kill()
    killed_at = await backlog.pool.fetchval("select clock_timestamp()")
    await coordinator.start()
    began = time.perf_counter()
    async with asyncio.timeout(120):
        while not await backlog.pool.fetchval(
            """
            select count(*) = $1 from execution_jobs j join agent_sessions s on s.id = j.session_id
             where j.status = 'running' and s.closed_at is null and s.opened_at > $2
            """,
            JOBS,
            killed_at,
        ):
            await asyncio.sleep(0.1)  # the question itself takes a while
    return (time.perf_counter() - began) * 1_000


async def one_update(backlog: Backlog) -> float:
    """Milliseconds. What it changes is put back."""
    async with backlog.pool.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        began = time.perf_counter()
        await db.execute("update execution_jobs set session_id = $1 where status = 'running'", str(uuid.uuid4()))
        took = (time.perf_counter() - began) * 1_000
        await transaction.rollback()
    return took
