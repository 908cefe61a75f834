from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from asyncpg import Pool, Record

from kici.wire import api
from tests.support import rows
from tests.support.api_server import TOKENS, Parts, client


async def body(admin: httpx.AsyncClient, path: str, **query: object) -> dict[str, Any]:
    answer = await admin.get(f"/api/v1/admin{path}", params={key: str(value) for key, value in query.items()})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_runs_are_listed_newest_first_and_filtered(pool: Pool[Record], admin: httpx.AsyncClient) -> None:
    now = datetime.now(UTC)
    made = [
        await rows.add_run(pool, created_at=now - timedelta(hours=5 - number), status=status, workflow_name=workflow)
        for number, (status, workflow) in enumerate([("success", "ci"), ("failed", "ci"), ("running", "deploy")])
    ]
    everything = await body(admin, "/runs")
    assert [run["runId"] for run in everything["runs"]] == made[::-1]
    assert (everything["total"], everything["limit"], everything["offset"]) == (3, 20, 0)

    async def ids(**query: object) -> list[str]:
        return [run["runId"] for run in (await body(admin, "/runs", **query))["runs"]]

    assert await ids(status="failed,running") == [made[2], made[1]]
    assert await ids(workflowName="deploy") == [made[2]]
    assert await ids(repo="other/repo") == []
    assert await ids(since=(now - timedelta(hours=4, minutes=30)).isoformat()) == [made[2], made[1]]
    assert await ids(limit=1, offset=1) == [made[1]]
    assert await ids(idPrefix=made[0][:13]) == [made[0]]
    assert (await body(admin, "/runs", count=1, workflowName="ci"))["total"] == 2


async def test_a_run_with_its_jobs_and_steps(pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient) -> None:
    run_id = await rows.add_run(pool, commit_message="fix it")
    build = await rows.add_job(pool, run_id, steps=("compile", "pack"))
    test = await rows.add_job(
        pool, run_id, name="test (3.11)", status="pending", attempt=0, step_status="pending", position=1
    )
    await pool.execute(
        """
        insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
        values ($1, $2, $3, 'test', 'build', '["success"]')
        """,
        run_id,
        test.job_id,
        build.job_id,
    )
    parts.lifecycle.reasons = {test.job_id: "waits for build", build.job_id: "not asked"}
    assert (await body(admin, f"/runs/{run_id}"))["run"]["commitMessage"] == "fix it"
    jobs = (await body(admin, f"/runs/{run_id}/jobs", includeSteps="true"))["jobs"]
    assert [(job["jobName"], job["status"], job["waitingReason"], job["needs"]) for job in jobs] == [
        ("build", "running", None, []),
        ("test (3.11)", "pending", "waits for build", ["build"]),
    ]
    assert [[step["stepName"] for step in job["steps"]] for job in jobs] == [["compile", "pack"], ["compile"]]
    assert (await body(admin, f"/runs/{run_id}/jobs"))["jobs"][0]["steps"] is None


async def test_a_second_attempt_shows_its_own_steps(pool: Pool[Record], admin: httpx.AsyncClient) -> None:
    run_id = await rows.add_run(pool)
    job = await rows.add_job(pool, run_id, step_status="failed")
    await pool.execute("update execution_jobs set attempt = 2")
    await rows.add_step(pool, run_id, job.job_id, 0, "compile", attempt=2)
    (shown,) = (await body(admin, f"/runs/{run_id}/jobs", includeSteps=1))["jobs"]
    assert [step["status"] for step in shown["steps"]] == ["running"]


async def test_cancelling_goes_to_the_lifecycle(pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient) -> None:
    run_id = await rows.add_run(pool)
    gentle = await admin.post(f"/api/v1/admin/runs/{run_id}/cancel")
    forced = await admin.post(f"/api/v1/admin/runs/{run_id}/cancel", json={"force": True})
    assert (gentle.status_code, gentle.json()) == (200, {"status": "cancelling", "cancelledJobs": 2})
    assert forced.status_code == 200
    assert parts.lifecycle.asked == [
        (run_id, "admin_token:admin", "cancelled by token admin", False),
        (run_id, "admin_token:admin", "cancelled by token admin, at once", True),
    ]


async def test_a_run_that_has_ended_is_not_cancelled(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient
) -> None:
    run_id = await rows.add_run(pool, status="failed")
    answer = await admin.post(f"/api/v1/admin/runs/{run_id}/cancel")
    assert (answer.status_code, answer.json()["error"]) == (409, "Run already in terminal state: failed")
    assert (await admin.post(f"/api/v1/admin/runs/{run_id}/cancel", content=b"{nonsense")).status_code == 400
    assert parts.lifecycle.asked == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/{unknown}", 404),
        ("/runs/{unknown}/jobs", 404),
        ("/runs/{unknown}/stream", 404),
        ("/runs/{unknown}/artifacts", 404),
        ("/runs/{unknown}/jobs/{unknown}/steps/0/logs", 404),
        ("/runs/abc", 400),
        ("/runs/abc/jobs", 400),
        ("/runs/abc/stream", 400),
        ("/runs/{unknown}/jobs/abc/steps/0/logs", 400),
        ("/runs/{unknown}/jobs/{unknown}/steps/-2/logs", 400),
        ("/runs/{unknown}/jobs/{unknown}/steps/0/logs?limit=2001", 400),
        ("/runs?status=happy", 400),
        ("/runs?since=yesterday", 400),
        ("/runs?limit=101", 400),
        ("/runs?limit=x", 400),
        ("/runs?idPrefix=%27", 400),
        ("/queue?status=gone", 400),
        ("/queue?runId=1", 400),
        ("/event-log?status=gone", 400),
        ("/event-log/unknown", 404),
        ("/event-log/%00", 400),
    ],
)
async def test_what_makes_no_sense_is_refused_and_what_is_not_there_is_not_found(
    admin: httpx.AsyncClient, path: str, status: int
) -> None:
    answer = await admin.get("/api/v1/admin" + path.format(unknown=uuid.uuid4()))
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "path", ["/runs", "/queue", "/agents", "/event-log", f"/runs/{uuid.UUID(int=1)}/stream?logs=1"]
)
async def test_nothing_is_told_without_a_token(parts: Parts, path: str) -> None:
    async with client(parts.url, "0" * 64) as stranger:
        assert (await stranger.get(f"/api/v1/admin{path}")).status_code == 401


async def test_roles_bound_what_is_allowed(pool: Pool[Record], parts: Parts) -> None:
    run_id = await rows.add_run(pool)
    async with client(parts.url, TOKENS["auditor"]) as auditor, client(parts.url, TOKENS["developer"]) as developer:
        assert (await auditor.get("/api/v1/admin/runs")).status_code == 200
        assert (await auditor.post(f"/api/v1/admin/runs/{run_id}/cancel")).status_code == 403
        assert (await developer.get("/api/v1/admin/queue")).status_code == 403
    assert parts.lifecycle.asked == []


async def test_the_queue_says_why_something_waits(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    waiting = await rows.add_job(pool, job.run_id, name="gpu", status="queued", attempt=0)
    await rows.add_queue_row(pool, waiting, claimed=False, name="gpu")
    parts.lifecycle.reasons = {waiting.job_id: "no agent has the label gpu"}
    entries = (await body(admin, "/queue"))["entries"]
    assert {(entry["jobName"], entry["status"], entry["reason"]) for entry in entries} == {
        ("gpu", "pending", "no agent has the label gpu"),
        ("build", "dispatched", ""),
    }
    assert [entry["jobName"] for entry in (await body(admin, "/queue", status="pending"))["entries"]] == ["gpu"]
    assert [entry["jobName"] for entry in (await body(admin, "/queue", jobNamePrefix="bu"))["entries"]] == ["build"]


async def test_agents_are_shown_with_what_they_do(pool: Pool[Record], admin: httpx.AsyncClient, job: rows.Job) -> None:
    await pool.execute(
        """
        insert into coordinators (instance, lease_expires_at, version) values ('here', now() + interval '1 minute', '1')
        """
    )
    await rows.add_session(pool, "idle")
    await rows.add_session(pool, "leaving", draining=True)
    await rows.add_session(pool, "silent", lost_at=datetime.now(UTC))
    await rows.add_session(pool, "orphan", coordinator="gone")
    await rows.add_session(pool, "left", closed_at=datetime.now(UTC))
    agents = (await body(admin, "/agents"))["agents"]
    assert {agent["agentId"]: agent["status"] for agent in agents} == {
        "agent-1": "busy",
        "idle": "idle",
        "leaving": "draining",
        "silent": "recovering",
        "orphan": "recovering",
    }
    assert [agent["runningJobs"] for agent in agents if agent["agentId"] == "agent-1"] == [[job.job_id]]


async def test_a_delivery_tells_what_became_of_it(pool: Pool[Record], admin: httpx.AsyncClient) -> None:
    event_id = await pool.fetchval(
        """
        insert into event_log (org_id, delivery_id, routing_key, event, source, provider, payload_size_bytes,
                               payload_hash, status, matched_count)
        values ('default', 'd-1', 'local:demo', 'push', 'direct', 'local', 10, 'abc', 'processed', 2) returning id
        """
    )
    made = {await rows.add_run(pool, event_id=event_id, workflow_name=name) for name in ("ci", "deploy")}
    shown = (await body(admin, "/event-log/d-1"))["delivery"]
    assert (shown["status"], shown["matchedCount"], set(shown["runIds"])) == ("processed", 2, made)
    assert (await body(admin, "/event-log", deliveryId="-1", status="processed"))["total"] == 1
    assert (await body(admin, "/event-log", status="failed"))["deliveries"] == []


async def test_the_answers_follow_their_structs(pool: Pool[Record], admin: httpx.AsyncClient, job: rows.Job) -> None:
    for path, body_type in [
        ("/runs", api.RunList),
        ("/runs?count=1", api.RunCount),
        (f"/runs/{job.run_id}", api.RunAnswer),
        (f"/runs/{job.run_id}/jobs?includeSteps=1", api.JobList),
        (f"/runs/{job.run_id}/jobs/{job.job_id}/steps/0/logs", api.LogPage),
        (f"/runs/{job.run_id}/artifacts", api.ArtifactList),
        ("/queue", api.QueueList),
        ("/agents", api.AgentList),
        ("/event-log", api.DeliveryList),
    ]:
        msgspec.json.decode((await admin.get(f"/api/v1/admin{path}")).content, type=body_type)


async def test_openapi_knows_the_routes(admin: httpx.AsyncClient) -> None:
    paths = (await admin.get("/schema/openapi.json")).json()["paths"]
    assert {
        "/api/v1/admin/runs",
        "/api/v1/admin/runs/{run_id}/stream",
        "/api/v1/admin/runs/{run_id}/jobs/{job_id}/steps/{step_index}/logs",
        "/api/v1/agent/jobs/{job_id}/artifacts/{name}",
        "/api/v1/admin/event-log/{delivery_id}",
    } <= set(paths)
    names = [parameter["name"] for parameter in paths["/api/v1/admin/runs"]["get"]["parameters"]]
    assert {"workflowName", "idPrefix", "since"} <= set(names)
