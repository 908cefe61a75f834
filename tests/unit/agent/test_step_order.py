from __future__ import annotations

from typing import Any

import pytest

from kici.agent.step_order import ProtocolBroken, StepOrder
from kici.engine.lockfile import LockJob, LockParallel, LockStep, Retry
from kici.wire.runner import JobEnded, StepEnded


def order(*steps: str, group: LockParallel | None = None, **options: Any) -> StepOrder:
    locked = tuple(LockStep(name, **options) for name in steps)
    return StepOrder(LockJob("build", locked, ("linux",), parallel=(group,) if group else ()))


def test_one_step_after_the_other() -> None:
    told = order("a", "b")
    told.start(0, 1)
    with pytest.raises(ProtocolBroken, match="start of step 1, attempt 1"):
        told.start(1, 1)
    with pytest.raises(ProtocolBroken, match="end of step 1"):
        told.end(StepEnded(1, "skipped"))
    told.end(StepEnded(0, "success"))
    with pytest.raises(ProtocolBroken, match="start of step 0"):
        told.start(0, 1)
    told.start(1, 1)
    with pytest.raises(ProtocolBroken, match="end of the job while a step runs"):
        told.end_job(JobEnded("success"))
    told.end(StepEnded(1, "success"))
    with pytest.raises(ProtocolBroken, match="start of step 2"):
        told.start(2, 1)
    told.end_job(JobEnded("success"))


def test_a_step_that_does_not_run_ends_without_a_beginning_when_it_is_its_turn() -> None:
    told = order("a", "b", "c")
    with pytest.raises(ProtocolBroken, match="end of step 1, which has not begun"):
        told.end(StepEnded(1, "skipped"))
    told.end(StepEnded(0, "skipped"))
    with pytest.raises(ProtocolBroken, match="end of step 0"):
        told.end(StepEnded(0, "skipped"))
    told.end(StepEnded(1, "cancelled"))
    told.end(StepEnded(2, "skipped"))


@pytest.mark.parametrize("status", ["success", "failed", "great"])
def test_only_skipped_and_cancelled_steps_need_not_begin(status: str) -> None:
    with pytest.raises(ProtocolBroken):
        order("a").end(StepEnded(0, status))


def test_another_attempt_comes_after_a_failure_that_is_not_the_last() -> None:
    told = order("a", "b", retry=Retry(2))
    told.start(0, 1)
    with pytest.raises(ProtocolBroken, match="another attempt of step 0 after success"):
        told.end(StepEnded(0, "success", final=False))
    told.end(StepEnded(0, "failed", final=False))
    assert list(told.running()) == []
    with pytest.raises(ProtocolBroken, match="start of step 1"):
        told.start(1, 1)
    with pytest.raises(ProtocolBroken, match="start of step 0, attempt 1"):
        told.start(0, 1)
    told.start(0, 2)
    with pytest.raises(ProtocolBroken, match="attempt 3 of 2"):
        told.end(StepEnded(0, "failed", attempt=2, final=False))
    told.end(StepEnded(0, "success", attempt=2))
    told.start(1, 1)


def test_the_steps_of_one_group_run_together_and_begin_in_their_order() -> None:
    told = order("before", "a", "b", "c", "after", group=LockParallel("all", 1, 3))
    told.start(0, 1)
    with pytest.raises(ProtocolBroken):
        told.start(1, 1)
    told.end(StepEnded(0, "success"))
    told.start(1, 1)
    with pytest.raises(ProtocolBroken, match="start of step 3"):
        told.start(3, 1)
    told.start(2, 1)
    told.end(StepEnded(3, "skipped"))
    told.end(StepEnded(2, "success"))
    assert list(told.running()) == [(1, 1)]
    with pytest.raises(ProtocolBroken, match="start of step 4"):
        told.start(4, 1)
    told.end(StepEnded(1, "success"))
    told.start(4, 1)


def test_a_group_has_no_more_running_than_it_says_also_while_one_waits_for_another_attempt() -> None:
    told = order("a", "b", "c", group=LockParallel("all", 0, 3, max_parallel=2), retry=Retry(2))
    told.start(0, 1)
    told.start(1, 1)
    told.end(StepEnded(0, "failed", final=False))
    with pytest.raises(ProtocolBroken, match="start of step 2"):
        told.start(2, 1)
    told.start(0, 2)
    told.end(StepEnded(1, "success"))
    told.start(2, 1)


def test_steps_of_two_groups_do_not_run_together() -> None:
    steps = tuple(LockStep(name) for name in "abcd")
    told = StepOrder(LockJob("build", steps, ("linux",), parallel=(LockParallel("x", 0, 2), LockParallel("y", 2, 2))))
    told.start(0, 1)
    told.start(1, 1)
    told.end(StepEnded(0, "success"))
    with pytest.raises(ProtocolBroken, match="start of step 2"):
        told.start(2, 1)


def test_a_job_does_not_succeed_with_a_step_that_has_not() -> None:
    for status in ("failed", "cancelled"):
        told = order("a")
        told.start(0, 1)
        told.end(StepEnded(0, status))
        with pytest.raises(ProtocolBroken, match="success although step 'a' has not succeeded"):
            told.end_job(JobEnded("success"))
    allowed = order("a", continue_on_error=True)
    allowed.start(0, 1)
    allowed.end(StepEnded(0, "failed"))
    allowed.end_job(JobEnded("success"))


@pytest.mark.parametrize("status", ["skipped", "drift_dropped"])
def test_a_job_that_need_not_run_has_run_no_step(status: str) -> None:
    told = order("a", "b")
    told.start(0, 1)  # its rules are asked there
    told.end(StepEnded(0, "skipped"))
    told.end_job(JobEnded(status))
    told.start(1, 1)
    told.end(StepEnded(1, "success"))
    with pytest.raises(ProtocolBroken, match=f"{status} after a step that has run"):
        told.end_job(JobEnded(status))
