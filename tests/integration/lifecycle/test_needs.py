from __future__ import annotations

import pytest

from kici.engine.lifecycle import FAILED_JOB, TERMINAL_JOB
from kici.engine.lockfile import LockNeed
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job

ALWAYS = tuple(TERMINAL_JOB)
ON_FAILURE = tuple(FAILED_JOB)


@pytest.mark.parametrize("ending", ["success", "failed", "cancelled", "skipped"])
@pytest.mark.parametrize(
    "run_on", [("success",), ALWAYS, ("success", "skipped"), ON_FAILURE], ids=["success", "always", "skip", "failure"]
)
async def test_a_dependant_starts_where_its_condition_holds_and_is_skipped_where_not(
    rig: Rig, ending: str, run_on: tuple[str, ...]
) -> None:
    made = await rig.make(job("first"), job("then", needs=[LockNeed("first", run_on)]))
    await rig.begin(made)
    await rig.end(made["first"], ending)
    then = await made.job("then")
    if ending in run_on:
        assert (then["status"], then["needs_satisfied"]) == ("queued", True)
        assert await made.queue_row("then")
    else:
        assert then["status"] == "skipped"
        assert f"first ended as {ending}" in then["error_message"]
        assert await made.steps("then") == {(1, 0): "skipped"}
        assert (await made.run())["completed_at"] is not None


async def test_a_skip_goes_on_down_the_line_and_the_run_ends_in_the_same_commit(rig: Rig) -> None:
    made = await rig.make(
        job("a"),
        job("b", needs=["a"]),
        job("c", needs=["b"]),
        job("d", needs=[LockNeed("c", ("skipped",)), LockNeed("a", ("failed",))]),
        job("e", needs=["d", "c"]),
    )
    await rig.begin(made)
    await rig.end(made["a"], "failed")
    assert await made.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "queued", "e": "skipped"}
    assert (await made.run())["status"] == "running"
    await rig.begin(made)
    await rig.end(made["d"])
    run = await made.run()
    assert (run["status"], run["failure_reason"]) == ("failed", "Failed jobs: a")


async def test_a_matrix_must_end_whole(rig: Rig) -> None:
    made = await rig.make(job("test", matrix={"v": ("1", "2")}), job("publish", needs=["test"]))
    await rig.begin(made)
    first, second, _ = made.ids.values()
    await rig.end(first)
    assert (await made.statuses())["publish"] == "pending"
    await rig.end(second)
    assert (await made.statuses())["publish"] == "queued"


async def test_one_unmet_need_skips_while_others_still_run(rig: Rig) -> None:
    made = await rig.make(job("a"), job("b"), job("c", needs=["a", "b"]))
    await rig.begin(made)
    await rig.end(made["a"], "failed")
    assert (await made.statuses())["c"] == "skipped"
    await rig.end(made["b"])
    assert (await made.run())["status"] == "failed"


async def test_jobs_that_failed_at_birth_decide_about_others_in_the_making_of_the_run(rig: Rig) -> None:
    made = await rig.make(
        job("bad"),
        job("good"),
        job("after-bad", needs=["bad"]),
        job("clean-up", needs=[LockNeed("bad", ON_FAILURE)]),
        problems=["bad"],
    )
    assert await made.statuses() == {"bad": "failed", "good": "queued", "after-bad": "skipped", "clean-up": "queued"}


async def test_a_run_of_which_nothing_can_start_ends_at_birth(rig: Rig) -> None:
    made = await rig.make(job("bad"), job("then", needs=["bad"]), problems=["bad"])
    run = await made.run()
    assert (run["status"], run["failure_reason"]) == ("failed", "Failed jobs: bad")
