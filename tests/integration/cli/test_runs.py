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


async def test_explain_says_why_jobs_wait(pool: Pool[Record], parts: Parts, job: rows.Job, kici: Kici) -> None:
    assert (await kici("explain", job.run_id[:8])).output == "no job of this run waits\n"
    waiting = await rows.add_job(pool, job.run_id, name="deploy", status="queued", attempt=0)
    parts.lifecycle.reasons[waiting.job_id] = "the queue is paused by me: rack; no agent is connected"
    told = "deploy  queued\n  the queue is paused by me: rack\n  no agent is connected\n"
    assert (await kici("explain", job.run_id)).output == told
    assert (await kici("explain", job.run_id, "deploy")).output == told
    runs = (await kici("explain", job.run_id, "test")).output
    assert runs.startswith("test (3.11)  running\n  it does not wait: attempt 1 runs on agent agent-1")
    listed = json.loads((await kici("explain", job.run_id, "--json")).output)["jobs"]
    assert {one["jobName"]: one["waits"] for one in listed} == {"test (3.11)": False, "deploy": True}
    assert "the run has no job 'lint'" in str((await kici("explain", job.run_id, "lint")).exception)


async def test_a_wrong_token_is_told_and_not_shown(kici: Kici) -> None:
    failed = await kici("list", token="5ec2e7" * 10)
    assert "does not accept the token" in str(failed.exception)
    assert "5ec2e7" not in f"{failed.exception!r} {failed.output}"


async def work_off(pool: Pool[Record], run_id: str | None, why: str = "") -> dict[str, object]:
    """What the pipeline does with the request once it is there: the request."""
    async with asyncio.timeout(20):
        while (
            row := await pool.fetchrow("select p.body from event_log e join event_payloads p on e.id = p.event_id")
        ) is None:
            await asyncio.sleep(0.02)
    status = "processed" if run_id else "failed"
    await pool.execute("update event_log set status = $1, run_id = $2, error_message = $3", status, run_id, why)
    return dict(json.loads(row["body"]))


async def test_a_rerun_waits_for_the_new_run_and_names_it(pool: Pool[Record], job: rows.Job, kici: Kici) -> None:
    await pool.execute("update execution_runs set status = 'failed'")
    await pool.execute("update execution_jobs set status = 'failed'")
    new = await rows.add_run(pool, parent_run_id=job.run_id, rerun_mode="failed")
    answer, request = await asyncio.gather(kici("rerun", job.run_id[:8], "--failed", "--json"), work_off(pool, new))
    assert json.loads(answer.output) == {"runId": new, "parentRunId": job.run_id}
    assert (request["mode"], request["runId"], request["current"]) == ("failed", job.run_id, False)
    shown = (await kici("show", new)).output
    assert f"Parent:       {job.run_id} (rerun: failed)" in shown


async def test_a_rerun_that_comes_to_nothing_says_why(pool: Pool[Record], job: rows.Job, kici: Kici) -> None:
    assert "is running: it can be rerun once it has ended" in str((await kici("rerun", job.run_id)).exception)
    await pool.execute("update execution_runs set status = 'failed'")
    assert "has no job 'x'; it has: test" in str((await kici("rerun", job.run_id, "--job", "x")).exception)
    why = "there is no workflow 'ci' any more"
    answer, _ = await asyncio.gather(kici("rerun", job.run_id), work_off(pool, None, why))
    assert f"no run was started (failed): {why}" in str(answer.exception)


@pytest.mark.parametrize("options", [["--failed", "--job", "a"], ["--commit", "current", "--failed"]])
async def test_what_of_a_rerun_excludes_each_other_is_wrong_usage(kici: Kici, options: list[str]) -> None:
    assert (await kici("rerun", "aaaa", *options)).exit_code == 2
