"""Jobs whose rules do not want them, and such that the module does not have: on an agent, and from birth."""

from __future__ import annotations

import pytest

from kici.engine.lockfile import LockNeed
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job


@pytest.mark.parametrize(("ending", "of_run"), [("skipped", "success"), ("drift_dropped", "failed")])
async def test_a_job_that_its_agent_does_not_run_ends_with_the_reason_and_its_steps_are_skipped(
    rig: Rig, ending: str, of_run: str
) -> None:
    made = await rig.make(job("deploy", steps=("one", "two")), job("after", needs=["deploy"]))
    await rig.begin(made)
    assert await rig.step(made["deploy"], "running", -1) == ""
    assert await rig.step(made["deploy"], "success", -1) == ""
    assert await rig.end(made["deploy"], ending, error="rule 'on main' says no") == ""
    row = await made.job("deploy")
    assert (row["status"], row["error_message"]) == (ending, "rule 'on main' says no")
    assert await made.steps("deploy") == {(1, -1): "success", (1, 0): "skipped", (1, 1): "skipped"}
    assert await made.queue_row("deploy") is None
    after = await made.job("after")
    assert (after["status"], after["error_message"]) == (
        "skipped",
        f"deploy ended as {ending} (needed success)",
    )
    assert (await made.run())["status"] == of_run


@pytest.mark.parametrize("ending", ["skipped", "drift_dropped"])
async def test_it_says_so_although_it_was_to_stop_or_was_thought_lost(rig: Rig, ending: str) -> None:
    made = await rig.make(job("a"), job("b"))
    await rig.begin(made)
    await rig.pool.execute("update execution_jobs set status = 'recovering' where job_name = 'b'")
    await rig.cancel(made)
    for name in ("a", "b"):
        assert await rig.end(made[name], ending) == ""
    assert set((await made.statuses()).values()) == {ending}


@pytest.mark.parametrize("ending", ["skipped", "drift_dropped"])
async def test_the_same_end_told_twice_is_taken_twice_and_another_one_refused(rig: Rig, ending: str) -> None:
    made = await rig.make(job("a"))
    await rig.begin(made)
    assert await rig.end(made["a"], ending) == ""
    assert await rig.end(made["a"], ending) == ""
    assert await rig.end(made["a"], "success") == f"the job has already ended as {ending}"


async def test_a_job_that_is_born_skipped_lets_those_start_that_want_that(rig: Rig) -> None:
    made = await rig.make(
        job("docs"),
        job("publish", needs=["docs"]),
        job("report", needs=[LockNeed("docs", ("success", "skipped"))]),
        skipped=["docs"],
    )
    assert await made.statuses() == {"docs": "skipped", "publish": "skipped", "report": "queued"}
    row = await made.job("docs")
    assert row["error_message"] == "no file below docs/ has changed"
    assert row["completed_at"] is not None
    assert row["init_failure"] is None
    assert await made.steps("docs") == {(1, 0): "skipped"}
    assert await made.queue_row("docs") is None


async def test_a_run_whose_jobs_are_all_born_skipped_is_a_success(rig: Rig) -> None:
    made = await rig.make(job("docs"), job("more", matrix={"v": ("1", "2")}), skipped=["docs", "more (1)", "more (2)"])
    run = await made.run()
    assert (run["status"], run["failure_reason"]) == ("success", None)
    assert run["completed_at"] is not None


async def test_a_fan_out_that_fails_fast_goes_on_past_a_combination_that_was_skipped(rig: Rig) -> None:
    made = await rig.make(
        job("test", matrix={"v": ("1", "2", "3")}, max_parallel=1, fail_fast=True), skipped=["test (1)"]
    )
    assert list((await made.statuses()).values()) == ["skipped", "queued", "pending"]
