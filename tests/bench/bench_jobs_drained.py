"""The whole way of a job through a coordinator, beside other queues that drain jobs which do nothing.

Each job is a run of its own with one step: dispatched, accepted, the acknowledgement awaited, the step begun and
ended, the job and with it the run ended; all durable, with agents in processes of their own. The peers drain the same
number of jobs from the same PostgreSQL, in turn with us, each in its own database (procrastinate a tenth, or it alone
would take minutes): pgqueuer as it is by default, which the limit is for, and with batches of 100. `JOBS`, `AGENTS` and
`SLOTS` set how many.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import statistics
import sys
import time

from tests.bench import load
from tests.bench.harness import Reference, Result, machine, percentile
from tests.bench.load import Agents, Backlog

PEERS = {
    "jobs_drained_per_s": "pgqueuer",
    "jobs_drained_beside_batches_of_100": "pgqueuer-100",
    "jobs_drained_beside_procrastinate": "procrastinate",
}
NAMES = tuple(PEERS)
JOBS = int(os.environ.get("JOBS") or 20_000)
ROUNDS = 5
AGENTS = int(os.environ.get("AGENTS") or 100)
SLOTS = int(os.environ.get("SLOTS") or 10)
SLOW_PEER_SHARE = 10
LIMIT = 1.5


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    each = JOBS // ROUNDS
    ours: list[float] = []
    peers: dict[str, list[float]] = {name: [] for name in PEERS.values()}
    async with load.server() as url:
        databases = {name: await load.database(url, name.replace("-", "_")) for name in peers}
        database = await load.database(url, "ours")
        async with (
            load.backlog(database) as backlog,
            load.coordinator(database) as coordinator,
            load.agents(coordinator, count=AGENTS, slots=SLOTS) as agents,
        ):
            await drain(backlog, agents, each // 2)
            await backlog.pool.execute("analyze")  # as autovacuum does within a minute
            for name in peers:
                await peer(name, databases[name], max(each // SLOW_PEER_SHARE, 1))
            for _ in range(ROUNDS):
                ours.append(await drain(backlog, agents, each))
                for name, rates in peers.items():
                    share = SLOW_PEER_SHARE if name == "procrastinate" else 1
                    rates.append(await peer(name, databases[name], max(each // share, 1)))
            await check(backlog, JOBS // ROUNDS * ROUNDS + each // 2)
    return [
        _result(figure, ours, name, peers[name], limit=LIMIT if figure == NAMES[0] else None)
        for figure, name in PEERS.items()
    ]


async def drain(backlog: Backlog, agents: list[Agents], count: int) -> float:
    """Jobs per second."""
    runs = await backlog.make(count)
    before = sum([await group.ask() for group in agents])
    await backlog.release(runs)
    began = time.perf_counter()
    await load.all_ended(agents, before + count)
    return count / (time.perf_counter() - began)


async def check(backlog: Backlog, count: int) -> None:
    found = await backlog.pool.fetchrow(
        """
        select (select count(*) from execution_steps where status = 'success') as steps,
               (select count(*) from execution_runs where status = 'success') as runs,
               (select count(*) from dispatch_queue) as open
        """
    )
    if tuple(found or ()) != (count, count, 0):
        raise RuntimeError(f"of {count} jobs the database has {found}")


async def peer(name: str, url: str, count: int) -> float:
    """Jobs per second."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.peers", name, url, str(count)), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{name} failed with {process.returncode}")
    return count / float(out)


def _result(figure: str, values: list[float], name: str, peers: list[float], *, limit: float | None) -> Result:
    p50, theirs = statistics.median(values), statistics.median(peers)
    return Result(
        name=figure,
        value=p50,
        unit="/s",
        samples=len(values),
        p50=p50,
        p99=percentile(values, 0.01),
        peer=Reference(name, theirs, importlib.metadata.version(name.partition("-")[0])),
        ratio=p50 / theirs,
        limit=limit,
        at_least=True,
        machine=machine(),
    )
