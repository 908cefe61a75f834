"""Other queues on PostgreSQL, draining jobs that do nothing: `python -m tests.bench.peers pgqueuer URL COUNT`.

Prints the seconds from the first look at the queue to the last job's end. The schema is installed where it is missing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial

import asyncpg
import uvloop

PROCRASTINATE_CONCURRENCY = 50


async def pgqueuer(url: str, count: int, batch: int = 10) -> float:
    """`batch` as it is by default."""
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.domain.types import QueueExecutionMode
    from pgqueuer.models import Job
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    try:
        driver = AsyncpgDriver(connection)
        queries = Queries(driver)
        if not await connection.fetchval("select to_regclass('pgqueuer') is not null"):
            await queries.install()
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
        done = 0
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            nonlocal done
            done += 1

        began = time.perf_counter()
        await worker.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
        took = time.perf_counter() - began
        left = await connection.fetchval("select count(*) from pgqueuer")
    finally:
        await connection.close()
    if done != count or left:
        raise RuntimeError(f"pgqueuer ran {done} of {count} jobs and left {left}")
    return took


async def procrastinate(url: str, count: int) -> float:
    from procrastinate import App, PsycopgConnector

    logging.disable(logging.CRITICAL)  # it tells of every job
    app = App(connector=PsycopgConnector(conninfo=url))
    done = 0

    @app.task(name="noop")
    async def noop() -> None:
        nonlocal done
        done += 1

    async with app.open_async():
        connection = await asyncpg.connect(url)
        try:
            if not await connection.fetchval("select to_regclass('procrastinate_jobs') is not null"):
                await app.schema_manager.apply_schema_async()
            await noop.batch_defer_async(*({} for _ in range(count)))
            began = time.perf_counter()
            await app.run_worker_async(
                wait=False, concurrency=PROCRASTINATE_CONCURRENCY, install_signal_handlers=False, listen_notify=False
            )
            took = time.perf_counter() - began
            left = await connection.fetchval("select count(*) from procrastinate_jobs where status <> 'succeeded'")
        finally:
            await connection.close()
    if done != count or left:
        raise RuntimeError(f"procrastinate ran {done} of {count} jobs and left {left}")
    return took


PEERS: dict[str, Callable[[str, int], Coroutine[None, None, float]]] = {
    "pgqueuer": pgqueuer,
    "pgqueuer-100": partial(pgqueuer, batch=100),
    "procrastinate": procrastinate,
}

if __name__ == "__main__":
    name, address, many = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(PEERS[name](address, int(many))))
