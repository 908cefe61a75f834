"""The database dies under load, and everybody who uses it goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.store.database import create_pool, transaction
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.orchestrator.store.group_commit import GroupCommit
from kici.orchestrator.store.notify import RUNS, Listener, Notifier
from tests.support.postgres import memory, reachable_folder
from tests.support.services import running, until


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedPostgres]:
    """A durable server of one's own, under supervision, to be hurt."""
    with reachable_folder(memory()) as folder:
        server = EmbeddedPostgres(Path(folder))
        await server.start()
        try:
            async with running(server, seconds=100):
                yield server
        finally:
            await server.stop()


@pytest.fixture
async def pool(server: EmbeddedPostgres) -> AsyncIterator[Pool[Record]]:
    pool = await create_pool(server.url, 5)
    await pool.execute("create table deliveries (id int primary key, times int not null default 1)")
    try:
        yield pool
    finally:
        pool.terminate()


def kill(server: EmbeddedPostgres) -> int:
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_what_was_acknowledged_under_load_is_there_after_a_kill_and_nobody_waits_long(
    server: EmbeddedPostgres, pool: Pool[Record]
) -> None:
    async def apply(items: Sequence[int]) -> Sequence[bool]:
        async with transaction(pool) as db:
            await db.executemany(
                "insert into deliveries (id) values ($1) on conflict (id) do update set times = deliveries.times + 1",
                [(item,) for item in items],
            )
        return [True] * len(items)

    commit = GroupCommit[int, bool](apply, max_items=50)
    outcome: Counter[str] = Counter()
    numbers = iter(range(100_000))
    acknowledged: list[int] = []
    after = asyncio.Event()

    async def sender() -> None:
        while not after.is_set():
            number = next(numbers)
            while True:  # as a sender does: again, until it is acknowledged
                try:
                    async with asyncio.timeout(5):
                        await commit.submit(number)
                except Unavailable:
                    outcome["refused"] += 1
                    await asyncio.sleep(0.01)
                else:
                    acknowledged.append(number)
                    break

    async with running(commit, seconds=60):
        senders = [asyncio.create_task(sender()) for _ in range(20)]
        for _ in range(2):
            enough = len(acknowledged) + 300
            while len(acknowledged) < enough:
                await asyncio.sleep(0.005)
            killed = kill(server)
            refused = outcome["refused"]
            while outcome["refused"] == refused:
                await asyncio.sleep(0.005)
            enough = len(acknowledged) + 300
            while len(acknowledged) < enough:
                await asyncio.sleep(0.005)
            assert server.pid != killed
        after.set()
        await asyncio.gather(*senders)

    stored = {row["id"] for row in await pool.fetch("select id from deliveries")}
    assert stored == set(acknowledged)


async def test_listeners_and_notifiers_go_on_after_a_kill(server: EmbeddedPostgres, pool: Pool[Record]) -> None:
    notifier, listener = Notifier(pool), Listener(server.url)
    heard: asyncio.Queue[set[str]] = asyncio.Queue()
    listener.subscribe(RUNS, heard.put_nowait)
    async with running(notifier, listener, seconds=60):
        assert await heard.get() == set()
        notifier.send(RUNS, "before")
        assert await heard.get() == {"before"}
        kill(server)
        notifier.send(RUNS, "during")
        while await heard.get() != set():
            pass
        notifier.send(RUNS, "after")
        while "after" not in await heard.get():
            pass


async def test_a_transaction_of_somebody_who_waits_is_refused_while_the_database_is_away(
    server: EmbeddedPostgres, pool: Pool[Record]
) -> None:
    kill(server)

    async def served() -> bool:
        try:
            async with transaction(pool) as db:
                await db.fetchval("select 1")
        except Unavailable:
            return False
        return server.starts == 2  # what is answered before is said by a server that is just dying

    await until(served)


async def test_a_database_that_hangs_is_away_within_the_time_that_somebody_waits(
    server: EmbeddedPostgres, pool: Pool[Record]
) -> None:
    held = [await pool.acquire() for _ in range(5)]
    with pytest.raises(Unavailable):
        async with asyncio.timeout(10), transaction(pool):
            raise AssertionError("there is no connection left")
    for connection in held:
        await pool.release(connection)
    async with transaction(pool) as db:
        assert await db.fetchval("select 1") == 1
