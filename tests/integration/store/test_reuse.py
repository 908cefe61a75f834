from __future__ import annotations

import uuid

import pytest
from asyncpg import Pool, Record

from kici.engine.lifecycle import JobStatus
from kici.engine.lockfile import LockNeed
from kici.orchestrator.errors import Conflict
from kici.orchestrator.store import artifacts
from kici.orchestrator.store.runs import Reused
from tests.support.locks import job
from tests.support.runs import Made, make_run

JOBS = (job("build", steps=("compile", "pack")), job("deploy", needs=["build"]))


async def built(pool: Pool[Record], *, status: str = "success") -> Made:
    """A run whose `build` has ended in its second attempt, with an artifact."""
    made = await make_run(pool, JOBS)
    await pool.execute(
        """
        update execution_jobs set status = $2, attempt = 2, agent_id = 'agent-7', started_at = now() - interval '1 min',
               completed_at = now(), duration_ms = 60000, outputs = '{"version": "1.2"}'
         where job_id = $1
        """,
        made["build"],
        status,
    )
    await pool.execute(
        "update execution_steps set attempt = 2, status = $2, exit_code = 0 where job_id = $1", made["build"], status
    )
    await pool.execute(
        """
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
        values ($1, $2, 2, 'wheel', 'artifacts/one', 3, 'abc')
        """,
        made.run_id,
        made["build"],
    )
    return made


async def rerun_of(pool: Pool[Record], made: Made, status: JobStatus = JobStatus.SUCCESS) -> Made:
    return await make_run(pool, JOBS, reused={"build": Reused(made["build"], status)})


async def test_a_job_that_is_removed_before_the_rerun_is_made_leaves_nothing_half_made(pool: Pool[Record]) -> None:
    with pytest.raises(Conflict, match="rerun the whole run"):
        await make_run(pool, JOBS, reused={"build": Reused(str(uuid.uuid4()), JobStatus.SUCCESS)})
    assert await pool.fetchval("select count(*) from execution_runs") == 0


async def test_a_reused_job_is_born_as_the_earlier_one_ended_and_lets_its_dependants_start(pool: Pool[Record]) -> None:
    first = await built(pool)
    again = await rerun_of(pool, first)
    assert await again.statuses() == {"build": "success", "deploy": "queued"}
    build = await again.job("build")
    assert (build["attempt"], build["agent_id"], build["duration_ms"]) == (2, "agent-7", 60_000)
    assert build["outputs"] == {"version": "1.2"}
    assert build["reused_from"] == first["build"]
    assert await again.steps("build") == {(2, 0): "success", (2, 1): "success"}
    assert await again.queue_row("build") is None


async def test_an_artifact_of_a_reused_job_is_one_of_the_rerun(pool: Pool[Record]) -> None:
    again = await rerun_of(pool, await built(pool))
    async with pool.acquire() as db:
        found = await artifacts.find(db, again.run_id, "wheel")
    assert found
    assert (found.object_key, found.job_name) == ("artifacts/one", "build")


async def test_through_several_reruns_the_job_that_really_ran_stays_known(pool: Pool[Record]) -> None:
    first = await built(pool)
    third = await rerun_of(pool, await rerun_of(pool, first))
    assert (await third.job("build"))["reused_from"] == first["build"]
    assert await third.steps("build") == {(2, 0): "success", (2, 1): "success"}


async def test_an_ending_that_a_need_does_not_take_skips_the_dependants_of_a_reused_job(pool: Pool[Record]) -> None:
    first = await built(pool, status="failed")
    again = await rerun_of(pool, first, JobStatus.FAILED)
    assert await again.statuses() == {"build": "failed", "deploy": "skipped"}
    assert (await again.run())["status"] == "failed"


async def test_a_job_that_needs_an_ending_which_the_reused_one_has_starts(pool: Pool[Record]) -> None:
    first = await built(pool, status="failed")
    jobs = (JOBS[0], job("alarm", needs=[LockNeed("build", ("failed",))]))
    again = await make_run(pool, jobs, reused={"build": Reused(first["build"], JobStatus.FAILED)})
    assert await again.statuses() == {"build": "failed", "alarm": "queued"}
