from __future__ import annotations

import httpx
import msgspec
import pytest
from asyncpg import Pool, Record

from kici.engine.lifecycle import JobStatus
from kici.orchestrator.dispatch import orders
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.identity.tokens import digest
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.secrets.job_outputs import MAX_PER_JOB
from kici.orchestrator.store import jobs, reuse
from kici.orchestrator.store.lanes import Claimed, Lane
from kici.wire.agent import Dispatch, unpack_orchestrator
from kici.wire.context import JobContext
from tests.support import rows
from tests.support.api_server import JOB_TOKEN, Parts, client

VALUE = "tok-9f8e7d6c5b4a"
NEEDING = "kjt_" + "8" * 64


async def put(
    parts: Parts, job: rows.Job, name: str, value: str | bytes = VALUE, *, attempt: int = 1, token: str = JOB_TOKEN
) -> httpx.Response:
    async with client(parts.url, token) as agent:
        path = f"/api/v1/agent/jobs/{job.job_id}/secret-outputs/{name}?attempt={attempt}"
        return await agent.put(path, content=value)


async def secrets_of(parts: Parts, job: rows.Job) -> dict[str, str]:
    """As the agent of the needing job gets them."""
    async with client(parts.url, NEEDING) as agent:
        answer = await agent.get(f"/api/v1/agent/jobs/{job.job_id}/context?attempt=1")
    assert answer.status_code == 200, answer.text
    return msgspec.msgpack.decode(answer.content, type=JobContext).secrets


async def needing(pool: Pool[Record], *upstream: rows.Job, order: tuple[str, ...] = ()) -> rows.Job:
    """A running job with a token of its own that needs these, which the author named in this order."""
    definition = {"needs": [{"job": name} for name in order]}
    job = await rows.add_job(pool, upstream[0].run_id, name="deploy", position=9, definition=definition)
    await rows.add_queue_row(pool, job, token_hash=digest(NEEDING), name="deploy")
    await pool.executemany(
        """
        insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
        select $1, $2, $3, 'deploy', job_name, '["success"]' from execution_jobs where job_id = $3
        """,
        [(job.run_id, job.job_id, one.job_id) for one in upstream],
    )
    return job


async def test_the_jobs_that_need_it_get_it_and_nobody_can_read_it_where_it_lies(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    assert (await put(parts, job, "TOKEN")).status_code == 204
    assert (await put(parts, job, "TEXT", "two\nlines ä")).status_code == 204
    deploy, other = await needing(pool, job), await rows.add_job(pool, job.run_id, name="other")
    assert await secrets_of(parts, deploy) == {"TOKEN": VALUE, "TEXT": "two\nlines ä"}
    stored = await pool.fetch("select s::text as row from secret_outputs s")
    assert len(stored) == 2
    assert VALUE not in str(stored)
    shown = await admin.get(f"/api/v1/admin/runs/{job.run_id}/jobs?includeSteps=1")
    assert VALUE not in shown.text
    async with pool.acquire() as db:
        found = await jobs.orders(db, [deploy.job_id, other.job_id])
    assert (found[deploy.job_id].has_secrets, found[other.job_id].has_secrets) == (True, False)


async def test_a_dispatch_carries_no_secret_and_sends_its_agent_to_fetch_them(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    await put(parts, job, "TOKEN")
    deploy = await needing(pool, job)
    async with pool.acquire() as db:
        found = (await jobs.orders(db, [deploy.job_id]))[deploy.job_id]
    claim = Claimed(deploy.job_id, deploy.run_id, 1, deploy.session_id, "hash", 1, Lane(1, "local/demo"), 0.0, 0.0)
    frame = orders.dispatch(found, claim, "kjt_x", Login(), limits=Limits(), place=Place())
    (sent,) = unpack_orchestrator(frame)
    assert isinstance(sent.body, Dispatch)
    assert sent.body.context is None


async def test_of_one_name_the_later_job_in_needs_wins(pool: Pool[Record], parts: Parts) -> None:
    run_id = await rows.add_run(pool)
    made = {}
    for position, name in enumerate(("first", "second", "build (1)", "build (2)")):
        made[name] = await rows.add_job(pool, run_id, name=name, position=position)
        token = "kjt_" + str(position) * 64
        await rows.add_queue_row(pool, made[name], token_hash=digest(token), name=name)
        assert (await put(parts, made[name], "WHO", f"by {name}", token=token)).status_code == 204
    deploy = await needing(pool, *made.values(), order=("build", "second", "first"))
    assert await secrets_of(parts, deploy) == {"WHO": "by first"}
    order = [{"job": "first"}, {"job": "build"}]
    await pool.execute("update execution_jobs set definition = $2 where job_id = $1", deploy.job_id, {"needs": order})
    assert await secrets_of(parts, deploy) == {"WHO": "by build (2)"}


async def test_only_what_the_last_attempt_handed_over_counts(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    assert (await put(parts, job, "OLD")).status_code == 204
    await pool.execute("update execution_jobs set attempt = 2 where job_id = $1", job.job_id)
    stale = await put(parts, job, "OLD", "late")  # the queue row does not know of the second attempt yet
    assert (stale.status_code, stale.json()["errorCode"]) == (409, "attempt_over")
    deploy = await needing(pool, job)
    assert await secrets_of(parts, deploy) == {}
    await pool.execute("update dispatch_queue set attempt = 2 where id = $1", job.job_id)
    assert (await put(parts, job, "NEW", attempt=2)).status_code == 204
    assert await secrets_of(parts, deploy) == {"NEW": VALUE}
    assert await pool.fetchval("select count(*) from secret_outputs") == 1


async def test_refusals_name_the_output_and_never_its_value(
    pool: Pool[Record],
    parts: Parts,
    job: rows.Job,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = [
        await put(parts, job, "not%20a%20name"),
        await put(parts, job, "BYTES", b"\xff" + VALUE.encode()),
        await put(parts, job, "LARGE", VALUE * 5_000),
        await put(parts, job, "TOKEN", token="kjt_" + "0" * 64),
        await put(parts, job, "TOKEN", attempt=2),
        await put(parts, await rows.add_job(pool, job.run_id, name="other"), "TOKEN"),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 413, 401, 409, 403]
    said = "".join(answer.text for answer in answers) + caplog.text + "".join(capsys.readouterr())
    assert VALUE not in said
    assert await pool.fetchval("select count(*) from secret_outputs") == 0


async def test_a_job_has_twenty_and_may_replace_them(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    for number in range(MAX_PER_JOB):
        assert (await put(parts, job, f"S{number}", "v")).status_code == 204
    over = await put(parts, job, "ONE_MORE")
    assert over.status_code == 400
    assert "up to 20" in over.json()["error"]
    assert (await put(parts, job, "S0", "newer")).status_code == 204
    assert (await secrets_of(parts, await needing(pool, job)))["S0"] == "newer"


async def test_a_reused_job_hands_over_what_the_one_that_ran_did(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    assert (await put(parts, job, "TOKEN")).status_code == 204
    await pool.execute("update execution_jobs set status = 'success' where job_id = $1", job.job_id)
    again = await rows.add_job(pool, await rows.add_run(pool), status=JobStatus.SUCCESS, steps=())
    async with pool.acquire() as db, db.transaction():
        await reuse.take_over(db, {again.job_id: job.job_id})
    assert await secrets_of(parts, await needing(pool, again)) == {"TOKEN": VALUE}


async def test_they_go_with_their_run(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    assert (await put(parts, job, "TOKEN")).status_code == 204
    await pool.execute("delete from execution_jobs where run_id = $1", job.run_id)
    await pool.execute("delete from execution_runs where run_id = $1", job.run_id)
    assert await pool.fetchval("select count(*) from secret_outputs") == 0
