from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import msgspec
import pytest
from asyncpg import Pool, Record

from kici.engine.lock_triggers import LockInput
from kici.engine.lockfile import LockWorkflow, ManualTrigger
from kici.orchestrator.api.run_start import routes
from kici.orchestrator.http import application
from kici.orchestrator.identity.access import Access
from kici.orchestrator.pipeline.manual import PROVIDER, ManualStart
from kici.orchestrator.store import registrations
from kici.orchestrator.store.registrations import Repository, RepositoryContext
from kici.wire.api import RunStart
from tests.support.locks import workflow
from tests.support.serving import serving

PATH = "/api/v1/admin/runs"
OPS = workflow("ops", on=[ManualTrigger()])


class Notifications(list[str]):
    def send(self, channel: str, key: str = "") -> None:
        self.append(channel)


@pytest.fixture
def notified() -> Notifications:
    return Notifications()


@pytest.fixture
async def client(
    pool: Pool[Record], notified: Notifications, admin_token: Callable[[str], Awaitable[str]]
) -> AsyncIterator[httpx.AsyncClient]:
    token = await admin_token("developer")
    async with (
        serving(application(routes(Access(pool), pool, notified))) as url,
        httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}) as client,
    ):
        yield client


async def register(pool: Pool[Record], repo: str, *workflows: LockWorkflow, key: str = "k") -> None:
    context = RepositoryContext("internal", f"/git/{repo}", "main", "0" * 64)
    async with pool.acquire() as db, db.transaction():
        now = await db.fetchval("select now()")
        assert await registrations.replace(db, Repository(key, repo, context), "1" * 40, workflows, now)


async def test_a_request_becomes_an_event_with_all_that_the_pipeline_needs(
    pool: Pool[Record], client: httpx.AsyncClient, notified: Notifications
) -> None:
    await register(pool, "local/app", OPS)
    answer = await client.post(PATH, json={"workflow": "ops", "ref": "dev", "inputs": {"a": "b"}})
    assert answer.status_code == 202
    event = await pool.fetchrow(
        "select e.*, p.body from event_log e join event_payloads p on p.event_id = e.id where delivery_id = $1",
        answer.json()["deliveryId"],
    )
    assert event
    assert (event["event"], event["provider"], event["status"]) == ("manual", PROVIDER, "received")
    assert msgspec.json.decode(event["body"], type=ManualStart) == ManualStart(
        start=RunStart("ops", "dev", "", {"a": "b"}),
        repo="local/app",
        provider="internal",
        routing_key="k",
        clone_url="/git/local/app",
        default_branch="main",
        actor="admin_token:developer",
    )
    assert notified == ["kici_events"]


async def test_a_request_repeated_with_its_key_starts_nothing_new(
    pool: Pool[Record], client: httpx.AsyncClient, notified: Notifications
) -> None:
    await register(pool, "local/app", OPS)
    headers = {"Idempotency-Key": "deploy-17"}
    first = await client.post(PATH, json={"workflow": "ops"}, headers=headers)
    run_id = await pool.fetchval("update event_log set run_id = gen_random_uuid() returning run_id")
    again = await client.post(PATH, json={"workflow": "ops"}, headers=headers)
    assert first.json() == {"deliveryId": again.json()["deliveryId"], "runId": None}
    assert again.json()["runId"] == run_id
    assert notified == ["kici_events"]
    other = await client.post(PATH, json={"workflow": "other"}, headers=headers)
    assert other.status_code == 409
    assert await pool.fetchval("select count(*) from event_log") == 1


async def test_two_requests_without_a_key_are_two_starts(pool: Pool[Record], client: httpx.AsyncClient) -> None:
    await register(pool, "local/app", OPS)
    for _ in range(2):
        assert (await client.post(PATH, json={"workflow": "ops"})).status_code == 202
    assert await pool.fetchval("select count(*) from event_log") == 2


async def test_the_repository_must_be_known_and_said_where_there_are_several(
    pool: Pool[Record], client: httpx.AsyncClient
) -> None:
    none = await client.post(PATH, json={"workflow": "ops"})
    assert (none.status_code, "no repository is known yet" in none.json()["error"]) == (404, True)
    await register(pool, "local/app", OPS)
    await register(pool, "team/app", OPS)
    open_question = await client.post(PATH, json={"workflow": "ops"})
    assert open_question.status_code == 400
    assert "local/app, team/app" in open_question.json()["error"]
    assert (await client.post(PATH, json={"workflow": "ops", "repo": "team/app"})).status_code == 202
    unknown = await client.post(PATH, json={"workflow": "ops", "repo": "x/y"})
    assert (unknown.status_code, "local/app" in unknown.json()["error"]) == (404, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workflow": ""}, "workflow"),
        ({"workflow": "ops", "ref": "--x"}, "ref"),
        ({"workflow": "ops", "inputs": {"a": "x" * 70_000}}, "inputs"),
        ({"workflow": "ops", "inputs": {str(n): "" for n in range(101)}}, "inputs"),
        ({"ref": "main"}, "workflow"),
    ],
)
async def test_what_cannot_be_right_is_refused_with_the_field(
    client: httpx.AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 400
    assert field in answer.text


DEPLOY = workflow("deploy", on=[ManualTrigger({"count": LockInput("integer", required=True, le=3)})])


async def test_inputs_are_checked_before_anything_is_stored(pool: Pool[Record], client: httpx.AsyncClient) -> None:
    await register(pool, "local/app", DEPLOY)
    for inputs, says in (
        ({"count": 7}, "input 'count' is 7; it is at most 3"),
        ({"count": "x"}, "it is a whole number"),
        ({"cuont": 1}, "there is no input 'cuont' (did you mean 'count'?)"),
        ({}, "input 'count' is missing"),
    ):
        answer = await client.post(PATH, json={"workflow": "deploy", "inputs": inputs})
        assert (answer.status_code, says in answer.json()["error"]) == (400, True)
    assert await pool.fetchval("select count(*) from event_log") == 0
    for good in ({"count": 2}, {"count": "2"}):
        assert (await client.post(PATH, json={"workflow": "deploy", "inputs": good})).status_code == 202
    # At another commit the workflow may take others: only the pipeline knows.
    other = await client.post(PATH, json={"workflow": "deploy", "ref": "dev", "inputs": {"x": True}})
    assert other.status_code == 202


async def test_only_who_may_trigger_runs_may_start_one(
    client: httpx.AsyncClient, admin_token: Callable[[str], Awaitable[str]]
) -> None:
    auditor = {"authorization": f"Bearer {await admin_token('auditor')}"}
    assert (await client.post(PATH, json={"workflow": "ops"}, headers=auditor)).status_code == 403
    assert (await client.post(PATH, json={"workflow": "ops"}, headers={"authorization": ""})).status_code == 401
