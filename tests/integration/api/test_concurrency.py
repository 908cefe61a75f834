from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from asyncpg import Pool, Record

from kici.engine.lockfile import LockConcurrency
from tests.support.intake_server import Orchestrator
from tests.support.locks import job
from tests.support.runs import make_run

ONE = LockConcurrency("deploy", pending="queue")
PATH = "/api/v1/admin/concurrency"


@pytest.fixture
async def server(pool: Pool[Record]) -> AsyncIterator[Orchestrator]:
    running = Orchestrator(pool)
    async with running.serve():
        yield running


async def as_role(server: Orchestrator, role: str) -> httpx.AsyncClient:
    token = await server.token(role)
    return httpx.AsyncClient(
        base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=20, trust_env=False
    )


async def test_groups_are_listed_with_who_holds_and_who_waits_in_order(server: Orchestrator) -> None:
    first = await make_run(server.pool, [job("a")], concurrency=ONE)
    second = await make_run(server.pool, [job("ship", concurrency=ONE)])
    third = await make_run(server.pool, [job("a")], concurrency=ONE)
    await make_run(server.pool, [job("a")], concurrency=LockConcurrency("other"), repo="local/other")
    async with await as_role(server, "auditor") as auditor:
        everything = (await auditor.get(PATH)).json()["groups"]
        assert [(one["scope"], one["group"]) for one in everything] == [
            ("internal:local::local/demo", "deploy"),
            ("internal:local::local/other", "other"),
        ]
        (found,) = (await auditor.get(PATH, params={"group": "deploy", "repo": "local/demo"})).json()["groups"]
    assert [one["runId"] for one in found["holders"]] == [first.run_id]
    assert [(one["runId"], one["jobName"]) for one in found["waiters"]] == [
        (second.run_id, "ship"),
        (third.run_id, None),
    ]
    assert (found["holders"][0]["repository"], found["waiters"][0]["state"]) == ("local/demo", "pending")


async def test_a_release_by_hand_starts_who_waits_beside_the_old_holder(server: Orchestrator) -> None:
    first, second, third = [await make_run(server.pool, [job("a")], concurrency=ONE) for _ in range(3)]
    async with await as_role(server, "admin") as admin:
        wrong = await admin.post(f"{PATH}/release", json={"group": "deploy", "runId": second.run_id})
        assert (wrong.status_code, wrong.json()["error"]) == (
            404,
            f"run {second.run_id} does not hold a slot of the concurrency group deploy",
        )
        done = await admin.post(f"{PATH}/release", json={"group": "deploy"})
        assert done.status_code == 200
    assert done.json() == {
        "scope": "internal:local::local/demo",
        "group": "deploy",
        "released": [{"runId": first.run_id, "jobId": None}],
        "started": [{"runId": second.run_id, "jobId": None}],
    }
    assert [(await one.statuses())["a"] for one in (first, second, third)] == ["queued", "queued", "pending"]
    row = await server.pool.fetchrow("select * from concurrency_groups where run_id = $1", first.run_id)
    assert row
    assert (row["status"], row["released_by"]) == ("completed", "admin_token:test admin")
    assert "kici_queue" in server.notifier.announced


async def test_a_name_in_several_scopes_wants_one_and_an_unknown_one_is_not_found(server: Orchestrator) -> None:
    for repo in ("local/a", "local/b"):
        await make_run(server.pool, [job("a")], concurrency=ONE, repo=repo)
    async with await as_role(server, "owner") as owner:
        both = await owner.post(f"{PATH}/release", json={"group": "deploy"})
        assert both.status_code == 409
        assert "internal:local::local/a, internal:local::local/b" in both.json()["error"]
        one = await owner.post(f"{PATH}/release", json={"group": "deploy", "scope": "internal:local::local/b"})
        assert one.status_code == 200
        assert (await owner.post(f"{PATH}/release", json={"group": "nothing"})).status_code == 404
        assert (await owner.post(f"{PATH}/release", json={"group": "deploy", "runId": "x"})).status_code == 400


@pytest.mark.parametrize(("role", "reads"), [("auditor", True), ("developer", False)])
async def test_only_who_manages_the_queue_may_release(server: Orchestrator, role: str, reads: bool) -> None:
    async with await as_role(server, role) as client:
        assert (await client.get(PATH)).status_code == (200 if reads else 403)
        assert (await client.post(f"{PATH}/release", json={"group": "deploy"})).status_code == 403
