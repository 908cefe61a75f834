from __future__ import annotations

import asyncio
import json

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import notify
from tests.integration.cli.conftest import Kici
from tests.support import rows
from tests.support.api_server import Parts

STAMP = "2026-01-02T03:04:05.678Z "
LINES = [f"{STAMP}line {number}" for number in range(5)]


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    return await rows.add_job(pool, await rows.add_run(pool), name="test (3.11)", steps=("pytest",))


async def send(parts: Parts, job: rows.Job) -> None:
    async with asyncio.timeout(10):
        for chunk in rows.chunked(job, LINES, 2):
            assert await parts.writer.append(job.session_id, chunk) is None


async def end(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    await rows.end_step(pool, job.step_ids[0], chunks=3)
    await pool.execute("update execution_jobs set status = 'success', completed_at = now()")
    await pool.execute("update execution_runs set status = 'success', completed_at = now()")
    parts.notifier.send(notify.RUNS, job.run_id)


async def test_list_is_a_table_or_json(pool: Pool[Record], kici: Kici) -> None:
    assert (await kici("list")).output == "No runs found.\n"
    run_id = await rows.add_run(pool, status="success", duration_ms=1234)
    shown = (await kici("list", "--status", "success,failed")).output
    header, rule, row, count = shown.splitlines()
    assert header.split() == ["run", "workflow", "status", "repo", "ref", "sha", "started", "duration"]
    assert set(rule) == {"-", " "}
    assert row.split() == [run_id, "ci", "success", "local/demo", "main", "aaaaaaa", "-", "1.2s"]
    assert count == "Showing 1 of 1 (offset 0, limit 20)"
    assert json.loads((await kici("list", "--json")).output)["runs"][0]["runId"] == run_id


async def test_show_is_a_tree_and_takes_the_beginning_of_an_id(parts: Parts, job: rows.Job, kici: Kici) -> None:
    shown = await kici("show", job.run_id[:7])
    assert shown.exit_code == 0, shown.output
    assert f"Run:          {job.run_id}" in shown.output
    assert "└─ ● test (3.11)  running" in shown.output
    assert "   └─ ● pytest  running" in shown.output
    assert json.loads((await kici("show", job.run_id, "--json")).output)["jobs"][0]["jobId"] == job.job_id


async def test_a_beginning_that_fits_none_or_several_is_refused(pool: Pool[Record], kici: Kici) -> None:
    for last in "12":
        await rows.add_run(pool, run_id=f"aaaaaaaa-0000-4000-8000-00000000000{last}")
    assert "beginning of 2 run ids" in str((await kici("show", "aaaa")).exception)
    assert "no run whose id begins with 'bb'" in str((await kici("show", "bb")).exception)
    assert "not the beginning of an id" in str((await kici("show", "x;y")).exception)


async def test_logs_without_and_with_times(pool: Pool[Record], parts: Parts, job: rows.Job, kici: Kici) -> None:
    await send(parts, job)
    shown = await kici("logs", job.run_id)
    assert shown.stdout.splitlines() == ["── test (3.11) / 1 pytest ──", *(line.removeprefix(STAMP) for line in LINES)]
    assert shown.stderr == "the run goes on: --follow prints what comes\n"
    assert (await kici("logs", job.run_id, "--timestamps", "--job", "test")).stdout.splitlines()[1:] == LINES
    assert json.loads((await kici("logs", job.run_id, "--json")).stdout)["logs"][0]["lines"] == LINES
    assert "the run has no job 'lint'; it has: test (3.11)" in str(
        (await kici("logs", job.run_id, "--job", "lint")).exception
    )


async def test_following_goes_on_until_the_run_ends(
    pool: Pool[Record], parts: Parts, job: rows.Job, kici: Kici
) -> None:
    following = asyncio.ensure_future(kici("logs", "-f", job.run_id))
    async with asyncio.timeout(20):
        while not parts.feed.watched(job.run_id):
            await asyncio.sleep(0.01)
    await send(parts, job)
    await end(pool, parts, job)
    shown = await following
    assert shown.exit_code == 0, shown.exception
    assert shown.stdout.splitlines() == ["── test (3.11) / 1 pytest ──", *(line.removeprefix(STAMP) for line in LINES)]
    assert shown.stderr == f"run {job.run_id} ended: success\n"


async def test_cancel(parts: Parts, job: rows.Job, kici: Kici) -> None:
    assert (await kici("cancel", job.run_id)).output == f"cancelling: 2 jobs of run {job.run_id}\n"
    assert (await kici("cancel", job.run_id, "--force", "--json")).exit_code == 0
    assert [asked[3] for asked in parts.lifecycle.asked] == [False, True]


async def test_a_wrong_token_is_told_and_not_shown(kici: Kici) -> None:
    failed = await kici("list", token="5ec2e7" * 10)
    assert "does not accept the token" in str(failed.exception)
    assert "5ec2e7" not in f"{failed.exception!r} {failed.output}"
