from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.intake.internal_source import register_internal_source
from kici.orchestrator.intake.sources import Sources
from kici.orchestrator.store.notify import SOURCES, Listener, Notifier
from tests.support.intake_server import Orchestrator

PATH = "/api/v1/admin/sources"
SECRET = "a secret that nobody may see"
GITHUB = {"name": "hub", "provider": "github", "secret": SECRET, "cloneToken": "a token that nobody may see"}
GENERIC = {"name": "monitor", "provider": "generic", "secret": SECRET}


@pytest.fixture
async def orchestrator(pool: Pool[Record]) -> AsyncIterator[Orchestrator]:
    running = Orchestrator(pool)
    async with running.serve():
        yield running


@pytest.fixture
async def owner(orchestrator: Orchestrator) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {await orchestrator.token()}"}
    async with httpx.AsyncClient(base_url=orchestrator.url, headers=headers, timeout=20, trust_env=False) as client:
        yield client


async def delivered(orchestrator: Orchestrator, url: str, secret: str = SECRET, key: str = "1") -> int:
    code = hmac.new(secret.encode(), b"{}", hashlib.sha256).hexdigest()
    headers = {
        "x-signature-256": code,
        "x-hub-signature-256": f"sha256={code}",
        "x-github-event": "ping",
        "x-github-delivery": key,
    }
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.post(url, content=b"{}", headers=headers)).status_code


@pytest.mark.parametrize("body", [GITHUB, GENERIC])
async def test_a_source_works_as_soon_as_it_is_made(
    orchestrator: Orchestrator, owner: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    made = await owner.post(PATH, json=body)
    assert made.status_code == 201, made.text
    source = made.json()["source"]
    assert source["webhookUrl"] == f"{orchestrator.url}/webhook/default/{body['provider']}/{body['name']}"
    assert await delivered(orchestrator, source["webhookUrl"]) == 202
    assert await delivered(orchestrator, source["webhookUrl"], "wrong") == 401
    assert (await owner.get(PATH)).json() == {"sources": [source]}


async def test_no_secret_comes_back_or_stands_in_the_database(
    orchestrator: Orchestrator, owner: httpx.AsyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    made = await owner.post(PATH, json=GITHUB)
    listed = await owner.get(PATH)
    refused = await owner.post(PATH, json=GITHUB)
    tables = [
        str([dict(row) for row in await orchestrator.pool.fetch(f"select * from {table}")])
        for table in ("sources", "scoped_secrets", "generic_webhook_sources")
    ]
    shown = capfd.readouterr()
    for text in (made.text, listed.text, refused.text, *tables, shown.out, shown.err):
        assert "nobody may see" not in text
    known = orchestrator.sources.by_name("hub")
    assert known
    assert known.clone_token == GITHUB["cloneToken"]


@pytest.mark.parametrize("by", ["name", "routingKey", "id"])
@pytest.mark.parametrize("body", [GITHUB, GENERIC])
async def test_a_removed_source_is_refused_at_once_and_its_secret_is_gone(
    orchestrator: Orchestrator, owner: httpx.AsyncClient, body: dict[str, Any], by: str
) -> None:
    source = (await owner.post(PATH, json=body)).json()["source"]
    answer = await owner.delete(f"{PATH}/{source[by]}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert await delivered(orchestrator, source["webhookUrl"]) == 404
    assert await orchestrator.pool.fetchval("select count(*) from scoped_secrets") == 0
    assert (await owner.delete(f"{PATH}/{source[by]}")).status_code == 404
    assert (await owner.post(PATH, json=body)).status_code == 201


async def test_a_name_is_given_once(owner: httpx.AsyncClient) -> None:
    assert (await owner.post(PATH, json=GITHUB)).status_code == 201
    for body in (GITHUB, {**GENERIC, "name": "hub"}):
        answer = await owner.post(PATH, json=body)
        assert (answer.status_code, answer.json()["errorCode"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"provider": "internal"}, "provider"),
        ({"secret": ""}, "secret"),
        ({"verificationMethod": "none"}, "verificationMethod"),
        ({"headerName": "a b"}, "headerName"),
        ({"provider": "github", "headerName": "X-Mine"}, "headerName"),
        ({"cloneUrl": "https://x/{repo}"}, "cloneUrl"),
        ({"maxPayloadBytes": -1}, "maxPayloadBytes"),
    ],
)
async def test_a_wrong_field_is_named(owner: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    answer = await owner.post(PATH, json={**GENERIC, **change})
    assert answer.status_code == 400
    assert field in answer.json()["error"]


async def test_only_who_may_does(orchestrator: Orchestrator, owner: httpx.AsyncClient) -> None:
    auditor = {"authorization": f"Bearer {await orchestrator.token('auditor')}"}
    assert (await owner.get(PATH, headers=auditor)).status_code == 200
    assert (await owner.post(PATH, json=GENERIC, headers=auditor)).status_code == 403
    assert (await owner.delete(f"{PATH}/hub", headers=auditor)).status_code == 403
    nobody = {"authorization": "Bearer " + "0" * 64}
    for call in (owner.get(PATH, headers=nobody), owner.post(PATH, json=GENERIC, headers=nobody)):
        assert (await call).status_code == 401


async def test_the_source_of_the_own_repository_stays(orchestrator: Orchestrator, owner: httpx.AsyncClient) -> None:
    await register_internal_source(
        orchestrator.pool, orchestrator.secrets, orchestrator.sources, name="local", secret="x"
    )
    assert [source["provider"] for source in (await owner.get(PATH)).json()["sources"]] == ["internal"]
    assert (await owner.delete(f"{PATH}/local")).status_code == 409


async def test_another_coordinator_hears_of_a_change(
    orchestrator: Orchestrator, owner: httpx.AsyncClient, database_url: str
) -> None:
    other = Sources(orchestrator.pool, orchestrator.secrets)
    listener, sender = Listener(database_url), Notifier(orchestrator.pool)
    listener.subscribe(SOURCES, other.changed)
    services = [asyncio.create_task(service.run()) for service in (other, listener, orchestrator.notifier, sender)]
    try:
        async with asyncio.timeout(20):
            while not listener.connections or not other.loaded:
                await asyncio.sleep(0.005)
            await owner.post(PATH, json=GITHUB)
            while other.by_name("hub") is None:
                await asyncio.sleep(0.005)
            await owner.delete(f"{PATH}/hub")
            while other.by_name("hub") is not None:
                await asyncio.sleep(0.005)
    finally:
        for task in services:
            task.cancel()
        await asyncio.gather(*services, return_exceptions=True)
