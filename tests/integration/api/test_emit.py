from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from asyncpg import Pool, Record

from kici.agent import told
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.orchestrator.identity.tokens import digest
from kici.orchestrator.pipeline.emitted import MAX_CHAIN_DEPTH, Emitted
from kici.wire.agent import Checkout, Dispatch
from tests.support import rows
from tests.support.api_server import JOB_TOKEN, Parts, client


async def running(pool: Pool[Record], **event: Any) -> rows.Job:
    """A running job with a valid token, of a run that `event` started."""
    run_id = await rows.add_run(
        pool,
        routing_key="github:main",
        clone_url="https://forge.example/team/app.git",
        repo_identifier="team/app",
        event={"type": "push", "branch": "main", "defaultBranch": "main", **event},
    )
    job = await rows.add_job(pool, run_id)
    await rows.add_queue_row(pool, job, token_hash=digest(JOB_TOKEN))
    return job


async def emit(parts: Parts, job: rows.Job, *, attempt: int = 1, **body: Any) -> httpx.Response:
    async with client(parts.url, JOB_TOKEN) as agent:
        sent = {"name": "built", "key": "0:1", **body}
        return await agent.post(f"/api/v1/agent/jobs/{job.job_id}/events?attempt={attempt}", json=sent)


async def test_an_event_is_in_the_log_before_the_answer(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool)
    answer = await emit(parts, job, payload={"version": "1.2"})
    assert answer.status_code == 201, answer.text
    row = await pool.fetchrow("select * from event_log join event_payloads on event_id = id")
    assert row
    assert str(row["id"]) == answer.json()["eventId"]
    assert (row["provider"], row["event"], row["action"]) == ("kici_event", "kici_event", "built")
    assert (row["status"], row["routing_key"], row["repo_identifier"]) == ("received", "github:main", "team/app")
    body = msgspec.json.decode(row["body"], type=Emitted)
    assert (body.name, body.payload, body.chain_depth) == ("built", {"version": "1.2"}, 1)
    assert (body.run_id, body.job_id, body.workflow, body.job) == (job.run_id, job.job_id, "ci", "build")
    assert (body.clone_url, body.default_branch) == ("https://forge.example/team/app.git", "main")


async def test_a_repeated_request_and_a_second_attempt_get_the_first_ones_id(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool)
    first = (await emit(parts, job, payload={"at": 1})).json()
    assert (await emit(parts, job, payload={"at": 1})).json() == first
    await pool.execute("update execution_jobs set attempt = 2")
    await pool.execute("update dispatch_queue set attempt = 2")
    assert (await emit(parts, job, attempt=2, payload={"at": 2})).json() == first
    assert (await emit(parts, job, attempt=2, key="0:2")).json() != first
    assert await pool.fetchval("select count(*) from event_log") == 2


async def test_an_attempt_that_is_over_emits_nothing(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool)
    await pool.execute("update execution_jobs set attempt = 2")  # the queue row does not know it yet
    over = await emit(parts, job)
    assert (over.status_code, over.json()["errorCode"]) == (409, "attempt_over")
    assert await pool.fetchval("select count(*) from event_log") == 0


async def test_a_chain_of_events_ends(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool, chainDepth=MAX_CHAIN_DEPTH - 1)
    assert (await emit(parts, job)).status_code == 201
    await pool.execute("update execution_runs set event = jsonb_set(event, '{chainDepth}', '10')")
    refused = await emit(parts, job, key="2")
    assert refused.status_code == 400
    assert "circle" in refused.json()["error"]


async def test_a_pull_request_that_is_not_trusted_emits_nothing(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool, type="pull_request", prNumber=7)
    assert (await emit(parts, job)).status_code == 403


async def test_what_cannot_be_an_event_is_refused_with_its_field(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool)
    assert (await emit(parts, job, name=" ")).json()["error"].startswith("name:")
    assert (await emit(parts, job, key="")).json()["error"].startswith("key:")
    assert (await emit(parts, job, payload="x" * 65_536)).status_code == 413
    assert await pool.fetchval("select count(*) from event_log") == 0


async def test_an_agent_gets_the_id_and_the_refusal_in_words(pool: Pool[Record], parts: Parts) -> None:
    job = await running(pool)
    checkout = Checkout("/git/x", "a" * 40, "a" * 40)
    api = JobApi(parts.url, Dispatch(job.run_id, job.job_id, 1, "ci", "build", "build", checkout, "", JOB_TOKEN))
    event_id = await told.emit(api, "built", {"parts": [1, None, "ä"]}, "0:1")
    assert event_id == str(await pool.fetchval("select id from event_log"))
    with pytest.raises(TransferFailed, match="event 'built' was not emitted: key:"):
        await told.emit(api, "built", None, "")
