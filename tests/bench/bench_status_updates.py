"""Updates of steps that 50 agents send through their sockets, beside single-row commits of one connection.

Each agent has one job, and tells the begin and the end of each of its steps. The floor changes one row of the same
table in each transaction, one after another.
"""

from __future__ import annotations

import asyncio
import time

from asyncpg import Pool, Record

from tests.bench import load
from tests.bench.bench_jobs_drained import drain
from tests.bench.harness import Result, compare

NAMES = ("status_updates_per_s",)
AGENTS = 50
STEPS = 50
JOBS = 4 * AGENTS
"""In a round."""
SINGLE = 500
ROUNDS = 5


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    ours: list[float] = []
    single: list[float] = []
    async with load.server() as url:
        database = await load.database(url, "ours")
        async with (
            load.backlog(database) as backlog,
            load.coordinator(database) as coordinator,
            load.agents(coordinator, count=AGENTS, slots=1, steps=STEPS) as agents,
        ):
            await drain(backlog, agents, AGENTS)
            await backlog.pool.execute("analyze")
            await one_by_one(backlog.pool)
            for _ in range(ROUNDS):
                single.append(await one_by_one(backlog.pool))
                ours.append(2 * STEPS * await drain(backlog, agents, JOBS))
    floor = "single-row commits"
    return [compare("status_updates_per_s", ours, floor, single, limit=3, unit="/s", at_least=True)]


async def one_by_one(pool: Pool[Record]) -> float:
    """Commits per second."""
    ids = [row["id"] for row in await pool.fetch("select id from execution_steps limit $1", SINGLE)]
    async with pool.acquire() as db:
        began = time.perf_counter()
        for one in ids:
            await db.execute("update execution_steps set status = 'success', completed_at = now() where id = $1", one)
        return len(ids) / (time.perf_counter() - began)
