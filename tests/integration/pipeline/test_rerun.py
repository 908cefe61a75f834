"""A rerun, from the request to its rows, in real repositories."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from asyncpg import Record

from kici.engine.lockfile import LockConcurrency, LockJob
from kici.orchestrator.pipeline.rerun import PROVIDER, RerunRequest
from kici.orchestrator.store import events
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support import locks
from tests.support.locks import job

JOBS = (
    job("lint"),
    job("test", matrix={"n": ("1", "2")}),
    job("deploy", needs=["lint", "test"]),
)


async def ran(rig: Rig, **endings: str) -> Record:
    """A run of a push whose jobs have all ended: so, or as success."""
    sha = rig.local.commit({LOCK: locks.lock(locks.workflow(jobs=JOBS))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    (run,) = await rig.runs()
    for row in await rig.jobs():
        status = endings.get(row["job_name"], "success")
        await rig.pool.execute(
            "update execution_jobs set status = $2, attempt = 1, completed_at = now(), outputs = $3 where job_id = $1",
            row["job_id"],
            status,
            {"from": row["job_name"]},
        )
    await rig.pool.execute("delete from dispatch_queue")
    status = "failed" if "failed" in endings.values() else "success"
    await rig.pool.execute("update execution_runs set status = $1, completed_at = now()", status)
    return run


async def asked(rig: Rig, run: Record, mode: str = "all", name: str = "", *, current: bool = False) -> str:
    """The request as the API writes it: the event's id."""
    request = RerunRequest(str(run["run_id"]), str(uuid.uuid4()), mode, name, current, "user:ann")  # type: ignore[arg-type]
    body = msgspec.json.encode(request)
    new = events.NewEvent(
        id=events.new_id(),
        delivery_id=f"rerun:{run['run_id']}:{request.request_id}",
        routing_key=run["routing_key"],
        event="rerun",
        action=mode,
        provider=PROVIDER,
        headers={},
        repo="local/app",
        ref=run["ref"],
        content_type="application/json",
        size=len(body),
        sha256="0" * 64,
        body=body,
    )
    async with rig.pool.acquire() as db:
        assert await events.insert_batch(db, [new]) == [True]
    return new.id


async def made(rig: Rig, run_id: str) -> tuple[Record, dict[str, Record]]:
    run = await rig.pool.fetchrow("select * from execution_runs where run_id = $1", run_id)
    assert run
    rows = await rig.pool.fetch("select * from execution_jobs where run_id = $1", run_id)
    return run, {row["job_name"]: row for row in rows}


async def rerun(rig: Rig, run: Record, *how: Any, **more: Any) -> tuple[Record, dict[str, Record]]:
    await asked(rig, run, *how, **more)
    done = await rig.done()
    assert done.status == "processed"
    (run_id,) = done.run_ids
    return await made(rig, run_id)


async def refused(rig: Rig, run: Record, *how: Any, **more: Any) -> str:
    event_id = await asked(rig, run, *how, **more)
    done = await rig.done()
    assert done.run_ids == ()
    assert await rig.pool.fetchval("select count(*) from execution_runs where parent_run_id is not null") == 0
    return f"{done.status}: {(await rig.event(event_id))['error_message']}"


def statuses(jobs: dict[str, Record]) -> dict[str, str]:
    return {name: row["status"] for name, row in jobs.items()}


async def test_a_whole_run_is_made_anew_with_its_needs_and_matrix(rig: Rig) -> None:
    first = await ran(rig)
    run, jobs = await rerun(rig, first)
    assert statuses(jobs) == {"lint": "queued", "test (1)": "queued", "test (2)": "queued", "deploy": "pending"}
    assert (run["parent_run_id"], run["original_run_id"]) == (first["run_id"], str(first["run_id"]))
    assert (run["trigger_event"], run["delivery_id"]) == ("rerun", f"rerun:{run['run_id']}")
    assert (run["triggered_by"], run["rerun_mode"]) == ("user:ann", "all")
    for same in ("ref", "sha", "workflow_sha", "lock_sha256", "event", "repo_identifier", "clone_url", "trust_tier"):
        assert run[same] == first[same]


async def test_what_failed_is_run_with_its_dependants_and_the_rest_is_reused(rig: Rig) -> None:
    first = await ran(rig, **{"test (2)": "failed", "deploy": "skipped"})
    _, jobs = await rerun(rig, first, "failed")
    assert statuses(jobs) == {"lint": "success", "test (1)": "success", "test (2)": "queued", "deploy": "pending"}
    assert jobs["lint"]["outputs"] == {"from": "lint"}
    assert jobs["lint"]["reused_from"] is not None
    assert jobs["test (2)"]["reused_from"] is None


async def test_a_rerun_of_a_rerun_knows_the_first_run(rig: Rig) -> None:
    first = await ran(rig, deploy="failed")
    second, _ = await rerun(rig, first, "failed")
    await rig.pool.execute("delete from dispatch_queue")
    await rig.pool.execute("update execution_jobs set status = 'failed' where status = 'queued'")
    await rig.pool.execute("update execution_runs set status = 'failed'")
    third, jobs = await rerun(rig, second, "failed")
    assert (third["parent_run_id"], third["original_run_id"]) == (second["run_id"], str(first["run_id"]))
    assert statuses(jobs)["deploy"] == "queued"
    root = await rig.pool.fetchval(
        "select job_id from execution_jobs where run_id = $1 and job_name = 'lint'", first["run_id"]
    )
    assert jobs["lint"]["reused_from"] == root


async def test_one_job_is_run_with_its_dependants_or_one_combination_of_it(rig: Rig) -> None:
    first = await ran(rig)
    _, jobs = await rerun(rig, first, "job", "deploy")
    assert statuses(jobs) == {"lint": "success", "test (1)": "success", "test (2)": "success", "deploy": "queued"}
    _, jobs = await rerun(rig, first, "job", "test (1)")
    assert statuses(jobs) == {"lint": "success", "test (1)": "queued", "test (2)": "success", "deploy": "pending"}


async def test_a_reused_failure_still_fails_the_run(rig: Rig) -> None:
    first = await ran(rig, lint="failed", deploy="skipped")
    run, jobs = await rerun(rig, first, "job", "deploy")
    assert statuses(jobs)["deploy"] == "skipped"
    assert (run["status"], run["failure_reason"]) == ("failed", "Failed jobs: lint")


async def test_a_job_that_was_defined_otherwise_is_not_reused(rig: Rig) -> None:
    """As an older version may have stored it."""
    first = await ran(rig, deploy="failed")
    await rig.pool.execute(
        "update execution_jobs set definition = jsonb_set(definition, '{priority}', '7') where job_name = 'lint'"
    )
    _, jobs = await rerun(rig, first, "failed")
    assert statuses(jobs) == {"lint": "queued", "test (1)": "success", "test (2)": "success", "deploy": "pending"}


async def test_at_the_current_commit_the_workflow_of_that_commit_runs(rig: Rig) -> None:
    first = await ran(rig)
    sha = rig.local.commit({LOCK: locks.lock(locks.workflow(jobs=[job("only")]))})
    rig.local.push()
    run, jobs = await rerun(rig, first, current=True)
    assert (run["sha"], run["workflow_sha"]) == (sha, sha)
    assert list(jobs) == ["only"]


async def test_a_branch_that_is_gone_has_no_current_commit(rig: Rig) -> None:
    first = await ran(rig)
    await rig.pool.execute("""update execution_runs set event = jsonb_set(event, '{branch}', '"gone"')""")
    assert "has no refs/heads/gone any more: rerun the run at its own commit" in await refused(rig, first, current=True)


async def test_a_workflow_or_a_lock_file_that_is_gone_is_said(rig: Rig) -> None:
    first = await ran(rig)
    rig.local.commit({LOCK: locks.lock(locks.workflow("other"))})
    rig.local.push()
    assert "has no workflow 'ci'; it has: other" in await refused(rig, first, current=True)
    rig.local.commit({LOCK: b"{"})
    rig.local.push()
    assert (await refused(rig, first, current=True)).startswith("lockfile_corrupt: ")


async def test_a_job_that_the_workflow_has_not_is_said(rig: Rig) -> None:
    first = await ran(rig)
    assert "no job 'x'; it has: deploy, lint, test" in await refused(rig, first, "job", "x")


async def test_a_run_that_goes_on_is_not_run_again(rig: Rig) -> None:
    first = await ran(rig)
    await rig.pool.execute("update execution_runs set status = 'running'")
    assert "has not ended" in await refused(rig, first)


async def test_a_source_that_was_removed_ends_the_request_with_that_reason(rig: Rig) -> None:
    first = await ran(rig)
    await rig.pool.execute("update execution_runs set clone_url = 'https://forge.test/a/b.git', routing_key = 'gone'")
    assert "the source gone, through which the repository was reached, was removed" in await refused(rig, first)


@pytest.mark.parametrize("mode", ["all", "failed"])
async def test_a_rerun_waits_for_its_concurrency_group_like_every_run(rig: Rig, mode: str) -> None:
    jobs: list[LockJob] = [job("build")]
    group = LockConcurrency("deploy-{branch}", pending="queue")
    sha = rig.local.commit({LOCK: locks.lock(locks.workflow(jobs=jobs, concurrency=group))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    (first,) = await rig.runs()
    await rig.pool.execute("update execution_jobs set status = 'failed'")
    await rig.pool.execute("update execution_runs set status = 'failed'")  # and its slot is still held
    _, again = await rerun(rig, first, mode)
    assert statuses(again) == {"build": "pending"}
