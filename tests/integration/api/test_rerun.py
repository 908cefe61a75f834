from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from asyncpg import Pool, Record

from kici.engine.lifecycle import JobStatus
from kici.orchestrator.store.runs import Reused
from tests.support import locks, rows
from tests.support.api_server import TOKENS, Parts, client
from tests.support.runs import Made, make_run

LINES = [f"2026-01-02T03:04:05.678Z line {number}" for number in range(5)]


def path(run_id: str) -> str:
    return f"/api/v1/admin/runs/{run_id}/rerun"


@pytest.fixture
async def ended(pool: Pool[Record]) -> rows.Job:
    run_id = await rows.add_run(pool, status="failed", routing_key="internal:local", event={"type": "push"})
    return await rows.add_job(pool, run_id, name="test (3.11)", status="failed")


async def test_a_request_becomes_one_event_however_often_it_is_sent(
    pool: Pool[Record], admin: httpx.AsyncClient, ended: rows.Job
) -> None:
    answers = await asyncio.gather(
        *(admin.post(path(ended.run_id), json={"mode": "failed", "requestId": "once"}) for _ in range(4)),
        admin.post(path(ended.run_id), json={"mode": "failed"}, headers={"Idempotency-Key": "once"}),
    )
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["deliveryId"] for answer in answers} == {f"rerun:{ended.run_id}:once"}
    event = await pool.fetchrow("select * from event_log")
    assert event
    assert (event["provider"], event["event"], event["action"], event["routing_key"]) == (
        *("rerun", "rerun", "failed"),
        "internal:local",
    )
    run_id = str(uuid.uuid4())
    await pool.execute("update event_log set run_id = $1", run_id)
    again = await admin.post(path(ended.run_id), json={"mode": "failed", "requestId": "once"})
    assert again.json()["runId"] == run_id
    other = await admin.post(path(ended.run_id), json={"mode": "all", "requestId": "once"})
    assert (other.status_code, "another rerun" in other.json()["error"]) == (409, True)


async def test_without_an_id_each_request_is_one_of_its_own(
    pool: Pool[Record], admin: httpx.AsyncClient, ended: rows.Job
) -> None:
    for _ in range(2):
        assert (await admin.post(path(ended.run_id))).status_code == 202
    assert await pool.fetchval("select count(*) from event_log") == 2


async def test_a_run_that_goes_on_is_not_rerun_and_the_answer_says_what_to_do(
    pool: Pool[Record], admin: httpx.AsyncClient, ended: rows.Job
) -> None:
    await pool.execute("update execution_runs set status = 'running'")
    for body in ({}, {"mode": "failed"}, {"mode": "job", "job": "test"}):
        answer = await admin.post(path(ended.run_id), json=body)
        assert (answer.status_code, "wait for that, or cancel it first" in answer.json()["error"]) == (409, True)
    assert await pool.fetchval("select count(*) from event_log") == 0


async def test_a_run_of_which_the_event_cannot_be_read_is_not_rerun(
    pool: Pool[Record], admin: httpx.AsyncClient, ended: rows.Job
) -> None:
    await pool.execute("""update execution_runs set event = '{"type": "eclipse"}'""")
    answer = await admin.post(path(ended.run_id))
    assert (answer.status_code, "cannot be read" in answer.json()["error"]) == (409, True)


async def test_where_nothing_failed_there_is_nothing_to_repair(
    pool: Pool[Record], admin: httpx.AsyncClient, ended: rows.Job
) -> None:
    await pool.execute("update execution_jobs set status = 'success'")
    answer = await admin.post(path(ended.run_id), json={"mode": "failed"})
    assert (answer.status_code, "no job of the run failed" in answer.json()["error"]) == (409, True)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"mode": "some"}, 400, "mode"),
        ({"mode": "job"}, 400, "job"),
        ({"job": "test"}, 400, "job"),
        ({"mode": "failed", "commit": "current"}, 400, "whole run"),
        ({"requestId": "a b"}, 400, "requestId"),
        ({"jobs": ["test"]}, 400, "jobs"),
        ({"mode": "job", "job": "x"}, 404, "it has: test"),
    ],
)
async def test_what_cannot_be_right_is_refused(
    admin: httpx.AsyncClient, ended: rows.Job, body: dict[str, Any], status: int, says: str
) -> None:
    answer = await admin.post(path(ended.run_id), json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


async def test_only_who_may_rerun_may(parts: Parts, admin: httpx.AsyncClient, ended: rows.Job) -> None:
    assert (await admin.post(path(str(uuid.uuid4())))).status_code == 404
    async with client(parts.url, TOKENS["auditor"]) as auditor:
        assert (await auditor.post(path(ended.run_id))).status_code == 403


# ── what a rerun shows of the jobs it reuses ──────────────────────────────────────────────────────────────────────────


async def reusing(pool: Pool[Record], parts: Parts) -> tuple[rows.Job, Made]:
    """A job with a log, and a run that reuses it before its log is compacted."""
    first = await rows.add_job(pool, await rows.add_run(pool))
    async with asyncio.timeout(10):
        for chunk in rows.chunked(first, LINES, 2):
            assert await parts.writer.append(first.session_id, chunk) is None
    await rows.end_step(pool, first.step_ids[0], chunks=3)
    await pool.execute("update execution_jobs set status = 'success', completed_at = now()")
    jobs = [locks.job("build"), locks.job("deploy", needs=["build"])]
    return first, await make_run(pool, jobs, reused={"build": Reused(first.job_id, JobStatus.SUCCESS)})


async def test_the_log_of_a_reused_job_is_read_where_it_was_written(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient
) -> None:
    first, again = await reusing(pool, parts)
    shown = await admin.get(f"/api/v1/admin/runs/{again.run_id}/jobs/{again['build']}/steps/0/logs")
    assert (shown.json()["lines"], shown.json()["complete"]) == (LINES, True)
    elsewhere = await admin.get(f"/api/v1/admin/runs/{again.run_id}/jobs/{first.job_id}/steps/0/logs")
    assert elsewhere.status_code == 404
    (build, _) = (await admin.get(f"/api/v1/admin/runs/{again.run_id}/jobs")).json()["jobs"]
    assert (build["status"], build["reusedFromRunId"]) == ("success", first.run_id)


async def test_the_stream_of_a_rerun_has_the_lines_of_reused_jobs_under_their_own_ids(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient
) -> None:
    _, again = await reusing(pool, parts)
    await pool.execute("update execution_jobs set status = 'cancelled' where job_id = $1", again["deploy"])
    await pool.execute("update execution_runs set status = 'cancelled' where run_id = $1", again.run_id)
    async with asyncio.timeout(20):
        text = (await admin.get(f"/api/v1/admin/runs/{again.run_id}/stream", params={"logs": "1"})).text
    logged = [block for block in text.split("\n\n") if block.startswith("event: log")]
    assert all(again["build"] in block for block in logged)
    assert sum(block.count("Z line ") for block in logged) == len(LINES)
    assert '"logsComplete":true' in text
