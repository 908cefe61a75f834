from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from asyncpg import Pool, Record

from kici.orchestrator.services import Service
from kici.orchestrator.store.notify import EVENTS, LOGS, QUEUE, RUNS, Listener, Notifier


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(service.run()) for service in services]
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def raw(url: str, channel: str) -> AsyncIterator[asyncio.Queue[str]]:
    """What goes over the wire, one entry for each NOTIFY."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
        heard.put_nowait(str(payload))

    connection = await asyncpg.connect(url)
    await connection.add_listener(channel, hear)
    try:
        yield heard
    finally:
        await connection.close()


async def test_the_first_goes_at_once_and_what_follows_within_the_interval_goes_as_one(
    pool: Pool[Record], database_url: str
) -> None:
    notifier = Notifier(pool, interval_s=0.2)
    async with raw(database_url, RUNS) as heard, running(notifier):
        notifier.send(RUNS, "first")
        assert await heard.get() == "first"
        for key in ("b", "c", "b", "d"):
            notifier.send(RUNS, key)
        assert await heard.get() == "b,c,d"
        assert heard.empty()


async def test_channels_do_not_wait_for_each_other(pool: Pool[Record], database_url: str) -> None:
    notifier = Notifier(pool, interval_s=3600)
    async with raw(database_url, RUNS) as runs, raw(database_url, QUEUE) as queue, running(notifier):
        notifier.send(RUNS, "a")
        assert await runs.get() == "a"
        notifier.send(QUEUE)
        assert await queue.get() == ""


async def test_what_is_pending_at_the_end_is_sent(pool: Pool[Record], database_url: str) -> None:
    notifier = Notifier(pool, interval_s=3600)
    async with raw(database_url, RUNS) as heard:
        async with running(notifier):
            notifier.send(RUNS, "a")
            assert await heard.get() == "a"
            notifier.send(RUNS, "b")
        async with asyncio.timeout(5):
            assert "b" in (await heard.get()).split(",")  # and "a" again, where its sending was cut short


async def test_a_subscriber_hears_the_keys_after_a_first_look_around(pool: Pool[Record], database_url: str) -> None:
    notifier, listener = Notifier(pool), Listener(database_url)
    runs: asyncio.Queue[set[str]] = asyncio.Queue()
    events: asyncio.Queue[set[str]] = asyncio.Queue()
    listener.subscribe(RUNS, runs.put_nowait)
    listener.subscribe(EVENTS, events.put_nowait)
    async with running(notifier, listener):
        assert (await runs.get(), await events.get()) == (set(), set())
        notifier.send(RUNS, "r1")
        assert await runs.get() == {"r1"}
        notifier.send(EVENTS)
        assert await events.get() == set()
        assert runs.empty()


async def test_a_lost_connection_is_opened_again_and_everybody_looks_around(
    pool: Pool[Record], database_url: str
) -> None:
    notifier, listener = Notifier(pool), Listener(database_url)
    heard: asyncio.Queue[set[str]] = asyncio.Queue()
    listener.subscribe(LOGS, heard.put_nowait)
    async with running(notifier, listener):
        assert await heard.get() == set()
        await pool.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and query like 'LISTEN%'"
        )
        assert await heard.get() == set()
        assert listener.connections == 2
        notifier.send(LOGS, "j1")
        assert await heard.get() == {"j1"}


async def test_a_silent_connection_is_asked_whether_it_lives(database_url: str) -> None:
    listener = Listener(database_url, check_s=0.01)
    heard: asyncio.Queue[set[str]] = asyncio.Queue()
    listener.subscribe(RUNS, heard.put_nowait)
    connection = await asyncpg.connect(database_url)
    async with running(listener):
        await heard.get()
        query = "select count(*) from pg_stat_activity where datname = current_database() and query = 'select 1'"
        while not await connection.fetchval(query):
            await asyncio.sleep(0.005)
    await connection.close()
    assert listener.connections == 1
