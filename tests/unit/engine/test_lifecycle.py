from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine import lifecycle
from kici.engine.lifecycle import (
    FAILED_JOB,
    ON_AGENT,
    TERMINAL_JOB,
    TERMINAL_RUN,
    TERMINAL_STEP,
    JobEvent,
    JobStatus,
    Rejected,
    RunEvent,
    RunStatus,
    StepEvent,
    StepStatus,
    failure_reason,
    roll_up,
)

MACHINES: dict[str, tuple[Callable[[Any, Any], Any], type[StrEnum], type[StrEnum], frozenset[Any], Any]] = {
    "run": (lifecycle.run_transition, RunStatus, RunEvent, TERMINAL_RUN, RunStatus.PENDING),
    "job": (lifecycle.job_transition, JobStatus, JobEvent, TERMINAL_JOB, JobStatus.PENDING),
    "step": (lifecycle.step_transition, StepStatus, StepEvent, TERMINAL_STEP, StepStatus.PENDING),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_event_on_every_state_is_accepted_or_rejected_with_a_reason(machine: str) -> None:
    transition, states, events, _, _ = MACHINES[machine]
    for state in states:
        for event in events:
            outcome = transition(state, event)
            assert isinstance(outcome, states) or (isinstance(outcome, Rejected) and machine in outcome.reason)


@pytest.mark.parametrize("machine", MACHINES)
@given(st.data())
def test_a_terminal_state_is_never_left(machine: str, data: st.DataObject) -> None:
    transition, _, events, terminal, state = MACHINES[machine]
    for event in data.draw(st.lists(st.sampled_from(list(events)), max_size=30)):
        outcome = transition(state, event)
        if state in terminal:
            assert isinstance(outcome, Rejected)
            assert state in outcome.reason
        state = state if isinstance(outcome, Rejected) else outcome


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_every_open_one_can_end(machine: str) -> None:
    transition, states, events, terminal, start = MACHINES[machine]

    def reachable(origin: Any) -> set[Any]:
        seen, todo = {origin}, [origin]
        while todo:
            state = todo.pop()
            for outcome in (transition(state, event) for event in events):
                if not isinstance(outcome, Rejected) and outcome not in seen:
                    seen.add(outcome)
                    todo.append(outcome)
        return seen

    assert reachable(start) == set(states)
    assert all(reachable(state) & terminal for state in states)


OF_THE_ORIGINAL = """
pending: ENQUEUE queued, CANCEL cancelled, SKIP skipped, HOLD held, WAIT waiting
held: APPROVE queued, REJECT cancelled, EXPIRE cancelled, CANCEL cancelled
waiting: TIMER_DONE queued, CANCEL cancelled
queued: START running, FAIL failed, CANCEL cancelled
running: SUCCEED success, FAIL failed, CANCEL cancelled, CANCEL_GRACEFUL cancelling, LOSE recovering
cancelling: CANCEL_FORCE cancelled, COMPLETE cancelled, FAIL failed
recovering: RESUME running, FAIL failed, CANCEL cancelled
"""


def test_every_transition_of_the_original_is_there() -> None:
    transitions = [
        (JobStatus(origin), JobEvent[event], JobStatus(target))
        for origin, moves in (line.split(": ") for line in OF_THE_ORIGINAL.strip().splitlines())
        for event, target in (move.split(" ") for move in moves.split(", "))
    ]
    assert len(transitions) == 25
    for origin, event, target in transitions:
        assert lifecycle.job_transition(origin, event) is target


def test_a_hold_that_nobody_answers_ends_what_is_held() -> None:
    assert lifecycle.job_transition(JobStatus.HELD, JobEvent.EXPIRE) is JobStatus.CANCELLED
    assert lifecycle.run_transition(RunStatus.HELD, RunEvent.EXPIRE) is RunStatus.FAILED
    assert lifecycle.run_transition(RunStatus.HELD, RunEvent.APPROVE) is RunStatus.PENDING


def test_nothing_starts_while_it_is_held() -> None:
    for event in (JobEvent.START, JobEvent.ENQUEUE):
        assert lifecycle.job_transition(JobStatus.HELD, event) == Rejected(f"a job that is held cannot {event}")
    assert isinstance(lifecycle.run_transition(RunStatus.HELD, RunEvent.START), Rejected)


def test_an_agent_can_only_have_what_it_accepted() -> None:
    for state in JobStatus:
        accepts_an_end = not isinstance(lifecycle.job_transition(state, JobEvent.SUCCEED), Rejected)
        assert accepts_an_end == (state in ON_AGENT)


def test_whoever_has_the_job_may_find_that_it_need_not_run_or_is_not_there() -> None:
    for state in ON_AGENT:
        assert lifecycle.job_transition(state, JobEvent.SKIP) is JobStatus.SKIPPED
        assert lifecycle.job_transition(state, JobEvent.DROP) is JobStatus.DRIFT_DROPPED


def test_a_cancel_ends_a_job_in_every_open_state() -> None:
    for state in set(JobStatus) - TERMINAL_JOB:
        assert lifecycle.job_transition(state, JobEvent.CANCEL) is JobStatus.CANCELLED


@given(st.lists(st.sampled_from(JobStatus)))
def test_a_run_ends_when_all_its_jobs_have(statuses: list[JobStatus]) -> None:
    ended = roll_up(statuses)
    assert (ended is None) == any(status not in TERMINAL_JOB for status in statuses)
    if ended is not None and FAILED_JOB & set(statuses):
        assert ended is RunStatus.FAILED


def test_a_failure_outweighs_a_cancellation_and_a_skip_is_a_success() -> None:
    assert roll_up([JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.SUCCESS]) is RunStatus.FAILED
    assert roll_up([JobStatus.CANCELLED, JobStatus.SUCCESS]) is RunStatus.CANCELLED
    assert roll_up([JobStatus.SKIPPED]) is RunStatus.SUCCESS
    assert roll_up([JobStatus.INFRA_LOST, JobStatus.SUCCESS]) is RunStatus.FAILED
    assert roll_up([JobStatus.DRIFT_DROPPED, JobStatus.CANCELLED]) is RunStatus.FAILED


def test_the_failure_reason_names_the_jobs() -> None:
    endings = {"b": JobStatus.FAILED, "a": JobStatus.TIMED_OUT_STALE, "c": JobStatus.SUCCESS}
    assert failure_reason(endings) == "Failed jobs: a, b"
    assert failure_reason({"c": JobStatus.SUCCESS}) is None
