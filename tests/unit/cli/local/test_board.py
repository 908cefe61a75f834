from __future__ import annotations

import pytest

from kici.cli.local.board import Board
from kici.engine.events import Event, EventType
from kici.engine.lifecycle import JobStatus, RunStatus
from kici.engine.lockfile import LockJob, LockNeed, LockStep, LockWorkflow, SourceLocation
from kici.engine.plan import plan
from kici.errors import KiciError


def board(*jobs: LockJob, only: tuple[str, ...] = ()) -> Board:
    workflow = LockWorkflow("ci", SourceLocation("ci.py"), "ci", "", (), jobs)
    event = Event(EventType.PUSH, branch="main")
    return Board(plan(workflow, event), event, only)


def lock(name: str, *needs: LockNeed | str, **options: object) -> LockJob:
    several = tuple(need if isinstance(need, LockNeed) else LockNeed(need) for need in needs)
    return LockJob(name, (LockStep("s", "true"),), ("linux",), needs=several, **options)  # type: ignore[arg-type]


def ready(found: Board) -> list[str]:
    return [job.name for job in found.ready()]


def test_jobs_start_when_what_they_need_has_ended() -> None:
    found = board(lock("a", matrix={"n": ("1", "2")}), lock("b", "a"))
    assert ready(found) == ["a (1)", "a (2)"]
    found.jobs["a (1)"].end(JobStatus.SUCCESS)
    assert ready(found) == ["a (2)"]
    found.jobs["a (2)"].end(JobStatus.SUCCESS)
    assert ready(found) == ["b"]
    assert [one.name for one in found.needed(found.jobs["b"])] == ["a (1)", "a (2)"]
    assert found.status() is None


def test_a_job_whose_needs_are_not_met_is_skipped_with_all_that_need_it() -> None:
    found = board(lock("a"), lock("b", "a"), lock("c", "b"), lock("d", LockNeed("a", ("failed",))))
    ready(found)
    found.jobs["a"].end(JobStatus.FAILED, "broken")
    assert ready(found) == ["d"]
    assert found.jobs["b"].error == "a ended as failed (needed success)"
    assert found.jobs["c"].status is JobStatus.SKIPPED
    found.jobs["d"].end(JobStatus.SUCCESS)
    assert found.status() is RunStatus.FAILED
    assert found.failure() == "Failed jobs: a"


def test_a_fan_out_has_no_more_under_way_than_it_may() -> None:
    found = board(lock("a", matrix={"n": ("1", "2", "3")}, max_parallel=2))
    assert ready(found) == ["a (1)", "a (2)"]
    found.jobs["a (1)"].status = JobStatus.RUNNING
    assert ready(found) == ["a (2)"]
    found.jobs["a (1)"].end(JobStatus.SUCCESS)
    assert ready(found) == ["a (2)", "a (3)"]


def test_the_first_failure_of_a_fan_out_halts_the_others() -> None:
    found = board(lock("a", matrix={"n": ("1", "2", "3", "4")}, max_parallel=3, fail_fast=True), lock("b", "a"))
    assert ready(found) == ["a (1)", "a (2)", "a (3)"]
    found.jobs["a (1)"].status = found.jobs["a (2)"].status = JobStatus.RUNNING
    assert found.halted() == {}
    found.jobs["a (1)"].end(JobStatus.FAILED, "broken")
    reason = "fan-out halted by fail_fast: a (1) failed"
    assert found.halted() == {"a (2)": reason}
    assert (found.jobs["a (3)"].status, found.jobs["a (3)"].error) == (JobStatus.CANCELLED, reason)
    assert (found.jobs["a (4)"].status, found.jobs["a (4)"].error) == (JobStatus.SKIPPED, reason)
    found.jobs["a (2)"].end(JobStatus.CANCELLED, reason)
    assert found.halted() == {}
    assert ready(found) == []
    assert found.failure() == "Failed jobs: a (1)"
    assert found.status() is RunStatus.FAILED


def test_without_fail_fast_the_others_go_on() -> None:
    found = board(lock("a", matrix={"n": ("1", "2", "3")}, max_parallel=1))
    assert ready(found) == ["a (1)"]
    found.jobs["a (1)"].end(JobStatus.FAILED, "broken")
    assert found.halted() == {}
    assert ready(found) == ["a (2)"]


def test_a_job_that_cannot_be_made_has_failed() -> None:
    found = board(lock("a", matrix={"n": ()}))
    assert ready(found) == []
    assert found.jobs["a"].status is JobStatus.FAILED
    assert "no combination" in found.jobs["a"].error


def test_a_chosen_job_brings_what_it_needs() -> None:
    found = board(lock("a"), lock("b", "a"), lock("c", "b"), lock("other"), only=("b",))
    assert list(found.jobs) == ["a", "b"]


def test_a_job_that_does_not_exist_cannot_be_chosen() -> None:
    with pytest.raises(KiciError, match="there is no job 'x'; there are a, b"):
        board(lock("a"), lock("b"), only=("x",))


def test_cancelling_ends_what_waits() -> None:
    found = board(lock("a"), lock("b", "a"))
    assert ready(found) == ["a"]
    found.jobs["a"].status = JobStatus.RUNNING
    found.cancel_waiting("enough")
    assert (found.jobs["b"].status, found.jobs["b"].error) == (JobStatus.CANCELLED, "enough")
    assert found.status() is None
