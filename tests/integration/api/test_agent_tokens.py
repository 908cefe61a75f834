from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unauthorized
from kici.orchestrator.identity.access import Access
from tests.support.intake_server import Orchestrator

PATH = "/api/v1/agent-tokens"


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


async def test_a_token_lets_an_agent_in_until_it_is_revoked(
    orchestrator: Orchestrator, owner: httpx.AsyncClient
) -> None:
    made = await owner.post(PATH, json={"labels": ["gpu"]})
    assert made.status_code == 201, made.text
    token, token_id = made.json()["token"], made.json()["id"]
    access = Access(orchestrator.pool)
    assert (await access.agent(token)).labels == ("gpu",)
    [listed] = (await owner.get(PATH)).json()["tokens"]
    assert (listed["id"], listed["tokenPrefix"], listed["labels"]) == (token_id, token[:12], ["gpu"])
    assert token not in (await owner.get(PATH)).text
    assert (await owner.delete(f"{PATH}/{token_id}")).status_code == 204
    with pytest.raises(Unauthorized):
        await access.agent(token)
    assert (await owner.get(PATH)).json() == {"tokens": []}
    assert (await owner.delete(f"{PATH}/{token_id}")).status_code == 404


async def test_a_token_without_labels_takes_any(orchestrator: Orchestrator, owner: httpx.AsyncClient) -> None:
    token = (await owner.post(PATH, json={})).json()["token"]
    assert (await Access(orchestrator.pool).agent(token)).labels is None


async def test_what_is_no_label_and_no_id_is_told(owner: httpx.AsyncClient) -> None:
    for label in ("", "a b", "-a", "é"):
        assert (await owner.post(PATH, json={"labels": [label]})).status_code == 400
    assert (await owner.delete(f"{PATH}/42")).status_code == 400
    assert (await owner.delete(f"{PATH}/{uuid.uuid4()}")).status_code == 404


async def test_only_an_owner_may(orchestrator: Orchestrator, owner: httpx.AsyncClient) -> None:
    admin = {"authorization": f"Bearer {await orchestrator.token('admin')}"}
    for call in (owner.get(PATH, headers=admin), owner.post(PATH, json={}, headers=admin)):
        assert (await call).status_code == 403
