"""The statements of deadlines and reruns cost the same however many runs there were."""

from __future__ import annotations

import uuid

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import deadlines, reruns, reuse
from tests.support.explain import explained


@pytest.fixture
async def old(pool: Pool[Record]) -> Pool[Record]:
    """A past of 30,000 runs that had deadlines, each with a job and a step."""
    await pool.execute(
        """
        with made as (
          insert into execution_runs (run_id, workflow_name, status, provider, repo_identifier, ref, sha, workflow_sha,
                                      deadline, created_at)
          select gen_random_uuid(), 'ci', 'success', 'github', 'team/app', 'r', n::text, n::text,
                 now() - n * interval '1 minute', now() - n * interval '1 minute'
            from generate_series(1, 30000) n returning run_id
        ), jobs as (
          insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, status, definition, deadline)
          select run_id, gen_random_uuid(), 'build', 'build', 0, 'success', '{}', now() - interval '1 hour' from made
          returning run_id, job_id
        ), steps as (
          insert into execution_steps (run_id, job_id, step_index, step_name) select run_id, job_id, 0, 's' from jobs
        )
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
        select run_id, job_id, 1, 'wheel', 'k', 1, '' from jobs
        """
    )
    await pool.execute("vacuum analyze execution_runs, execution_jobs, execution_steps, artifacts")
    return pool


async def test_what_is_overdue_is_found_without_looking_at_what_has_ended(old: Pool[Record]) -> None:
    async with explained(old) as plan:
        await deadlines.find_runs(plan.db, 200)
        await deadlines.find_jobs(plan.db, 200)
    assert not plan.scans("execution_runs")
    assert not plan.scans("execution_jobs")
    assert plan.buffers < 20


async def test_a_rerun_reads_its_own_run_only(old: Pool[Record]) -> None:
    run_id = await old.fetchval("select run_id from execution_runs limit 1")
    job_id = await old.fetchval("select job_id from execution_jobs where run_id = $1", run_id)
    new = str(uuid.uuid4())
    async with explained(old) as plan:
        await reruns.original(plan.db, run_id)
        await reruns.jobs(plan.db, run_id)
        await reuse._copy_steps(plan.db, [new], [job_id])
        await reuse._copy_artifacts(plan.db, [new], [job_id])
    for table in ("execution_runs", "execution_jobs", "execution_steps", "artifacts"):
        assert not plan.scans(table)
    assert plan.buffers < 60
