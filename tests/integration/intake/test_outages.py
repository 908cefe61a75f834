"""The database goes away in every way it can, under senders that want an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kici.orchestrator.intake.accept import COMMIT_S
from kici.orchestrator.store import migrate
from kici.orchestrator.store.database import create_pool
from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.integration.intake.test_webhooks import HUB, PUSH, deliver, github_headers
from tests.support.intake_server import Orchestrator

DEADLINE_S = 60


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A database server of our own, as durable as in production."""
    embedded = EmbeddedPostgres(folder, sync_init=False)
    await embedded.start()
    try:
        await asyncio.to_thread(lambda: asyncio.run(migrate.ensure(embedded.url)))
        yield embedded
    finally:
        await embedded.stop()


@pytest.fixture
async def running(server: EmbeddedPostgres) -> AsyncIterator[Orchestrator]:
    pool = await create_pool(server.url, 5)
    orchestrator = Orchestrator(pool)
    async with orchestrator.serve():
        await orchestrator.add(HUB)
        try:
            yield orchestrator
        finally:
            pool.terminate()


async def refused(orchestrator: Orchestrator, http: httpx.AsyncClient, delivery: str, body: bytes = PUSH) -> None:
    """Because intake waits less than a second; nothing else would end the wait as soon as the deadline here."""
    assert COMMIT_S < 1
    async with asyncio.timeout(4):
        answer = await deliver(orchestrator, http, body, headers=github_headers(body, delivery))
    assert (answer.status_code, answer.json()["errorCode"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0


async def accepted(orchestrator: Orchestrator, http: httpx.AsyncClient, delivery: str) -> None:
    """As senders do: again until it is taken."""
    async with asyncio.timeout(DEADLINE_S):
        while (await deliver(orchestrator, http, headers=github_headers(PUSH, delivery))).status_code == 503:
            await asyncio.sleep(0.02)


async def deliveries(orchestrator: Orchestrator) -> set[str]:
    rows = await orchestrator.pool.fetch("select delivery_id from event_log e join event_payloads on event_id = e.id")
    return {row["delivery_id"].rpartition(":")[2] for row in rows}


async def test_a_stopped_database_is_503_within_a_second_and_nothing_is_lost(
    running: Orchestrator, server: EmbeddedPostgres, http: httpx.AsyncClient
) -> None:
    await accepted(running, http, "before")
    await server.stop()
    for number in range(3):
        await refused(running, http, f"during-{number}")
    await refused(running, http, "large", b'{"x": "' + b"x" * 2_000_000 + b'"}')
    await server.start()
    for delivery in ("during-0", "after"):
        await accepted(running, http, delivery)
    assert await deliveries(running) == {"before", "during-0", "after"}
    assert running.inflight.used == 0


async def test_a_database_that_hangs_is_503_within_a_second(
    running: Orchestrator, server: EmbeddedPostgres, http: httpx.AsyncClient
) -> None:
    await accepted(running, http, "before")
    backends = await running.pool.fetch("select pid from pg_stat_activity where backend_type = 'client backend'")
    assert server.pid
    stopped = [server.pid, *(row["pid"] for row in backends)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        await refused(running, http, "during")
        await asyncio.gather(*(refused(running, http, f"together-{number}") for number in range(10)))
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    await accepted(running, http, "during")
    assert {"before", "during"} <= await deliveries(running)


async def test_every_delivery_that_was_accepted_survives_a_kill_of_the_database_under_load(
    running: Orchestrator, server: EmbeddedPostgres, http: httpx.AsyncClient
) -> None:
    promised: set[str] = set()
    enough = asyncio.Event()

    async def sender(name: str) -> None:
        number = 0
        while True:
            number += 1
            delivery = f"{name}.{number}"
            answer = await deliver(running, http, headers=github_headers(PUSH, delivery))
            if answer.status_code == 202:
                promised.add(delivery)
                if len(promised) >= 200:
                    enough.set()
            else:
                assert answer.status_code == 503

    supervision = asyncio.create_task(server.run())
    senders = [asyncio.create_task(sender(str(name))) for name in range(8)]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        before = len(promised)
        async with asyncio.timeout(DEADLINE_S):
            while len(promised) < before + 50:
                await asyncio.sleep(0.01)
    finally:
        for task in (*senders, supervision):
            task.cancel()
        ended = await asyncio.gather(*senders, supervision, return_exceptions=True)
    assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []
    assert server.starts == 2
    assert promised <= await deliveries(running)


async def test_a_read_only_database_is_503_too(running: Orchestrator, http: httpx.AsyncClient) -> None:
    """As after a failover to a standby; a full disk answers through the same door."""
    await running.pool.execute("alter system set default_transaction_read_only = on")
    await running.pool.execute("select pg_reload_conf()")
    async with asyncio.timeout(DEADLINE_S):
        while await running.pool.fetchval("show default_transaction_read_only") != "on":
            await asyncio.sleep(0.01)
    await refused(running, http, "during")
