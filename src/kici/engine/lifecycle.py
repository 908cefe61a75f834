"""What may become of a run, a job and a step: every state, every event, every transition.

`held` and `waiting` are states of the rule: a job that is held for an approval, or waits for a timer, is stored as
`pending` beside a row that says for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct


class RunStatus(StrEnum):
    PENDING = "pending"
    HELD = "held"
    """Waits for an approval before any of its jobs may start."""
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobStatus(StrEnum):
    PENDING = "pending"
    """Waits for the jobs it needs, for its concurrency group, or for its turn in a fan-out."""
    HELD = "held"
    """Its needs are met; it waits for an approval."""
    WAITING = "waiting"
    """Its needs are met; it waits for a timer."""
    QUEUED = "queued"
    """Has a row in the queue: waits for an agent, or was sent to one that has not yet accepted it."""
    RUNNING = "running"
    RECOVERING = "recovering"
    """Its agent is silent or gone; it is not known whether it still runs."""
    CANCELLING = "cancelling"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    TIMED_OUT_STALE = "timed_out_stale"
    """Expired in the queue: never sent to an agent."""
    DRIFT_DROPPED = "drift_dropped"
    """The lock file has it, or its generator made it, and the module that an agent has loaded has not."""
    INFRA_LOST = "infra_lost"
    """Its machine was lost and no attempt is left."""


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class RunEvent(StrEnum):
    HOLD = "hold"
    APPROVE = "approve"
    REJECT = "reject"
    EXPIRE = "expire"
    """Nobody approved it in time."""
    START = "start"
    CANCEL_GRACEFUL = "cancel_graceful"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


class JobEvent(StrEnum):
    ENQUEUE = "enqueue"
    """Its needs are met."""
    HOLD = "hold"
    """An approval is needed."""
    APPROVE = "approve"
    REJECT = "reject"
    WAIT = "wait"
    """A timer has to run out first."""
    TIMER_DONE = "timer_done"
    START = "start"
    """An agent has accepted it."""
    SUCCEED = "succeed"
    FAIL = "fail"
    SKIP = "skip"
    CANCEL = "cancel"
    """At once: nothing of it runs, or its agent has said so."""
    CANCEL_GRACEFUL = "cancel_graceful"
    """Its agent is asked to stop it, or has begun to."""
    CANCEL_FORCE = "cancel_force"
    """It was asked to stop, and its agent has not said in time how it ended."""
    COMPLETE = "complete"
    """It was asked to stop, and is known not to run any more."""
    LOSE = "lose"
    """Its agent is silent or gone. The original calls this RECOVER, and the return START."""
    RESUME = "resume"
    """Its agent is back and still runs it."""
    REQUEUE = "requeue"
    """The attempt is over without an ending; another one may start."""
    GIVE_UP = "give_up"
    """The machine was lost and no attempt is left."""
    EXPIRE = "expire"
    """Nobody took it, or approved it, in time."""
    DROP = "drop"
    """The evaluated workflow does not have it."""


class StepEvent(StrEnum):
    START = "start"
    RETRY = "retry"
    SUCCEED = "succeed"
    FAIL = "fail"
    SKIP = "skip"
    CANCEL = "cancel"


class Rejected(Struct, frozen=True):
    """The event changes nothing. `reason` is a sentence for logs and answers."""

    reason: str


R, J, S = RunStatus, JobStatus, StepStatus

TERMINAL_RUN = frozenset({R.SUCCESS, R.FAILED, R.CANCELLED})
TERMINAL_JOB = frozenset(
    {J.SUCCESS, J.FAILED, J.CANCELLED, J.SKIPPED, J.TIMED_OUT_STALE, J.DRIFT_DROPPED, J.INFRA_LOST}
)
TERMINAL_STEP = frozenset({S.SUCCESS, S.FAILED, S.SKIPPED, S.CANCELLED})
FAILED_JOB = frozenset({J.FAILED, J.TIMED_OUT_STALE, J.DRIFT_DROPPED, J.INFRA_LOST})
"""Endings that make a run fail, and that `on_failure` takes."""
ON_AGENT = frozenset({J.RUNNING, J.RECOVERING, J.CANCELLING})
"""An agent has accepted it, and its end is not known."""

_RUN: dict[RunStatus, dict[RunEvent, RunStatus]] = {
    R.PENDING: {
        RunEvent.HOLD: R.HELD,
        RunEvent.START: R.RUNNING,
        RunEvent.CANCEL_GRACEFUL: R.CANCELLING,
        RunEvent.SUCCEED: R.SUCCESS,
        RunEvent.FAIL: R.FAILED,
        RunEvent.CANCEL: R.CANCELLED,
    },
    R.HELD: {
        RunEvent.APPROVE: R.PENDING,
        RunEvent.REJECT: R.CANCELLED,
        RunEvent.EXPIRE: R.FAILED,
        RunEvent.FAIL: R.FAILED,
        RunEvent.CANCEL: R.CANCELLED,
    },
    R.RUNNING: {
        RunEvent.CANCEL_GRACEFUL: R.CANCELLING,
        RunEvent.SUCCEED: R.SUCCESS,
        RunEvent.FAIL: R.FAILED,
        RunEvent.CANCEL: R.CANCELLED,
    },
    R.CANCELLING: {RunEvent.SUCCEED: R.SUCCESS, RunEvent.FAIL: R.FAILED, RunEvent.CANCEL: R.CANCELLED},
}

_JOB: dict[JobStatus, dict[JobEvent, JobStatus]] = {
    J.PENDING: {
        JobEvent.ENQUEUE: J.QUEUED,
        JobEvent.HOLD: J.HELD,
        JobEvent.WAIT: J.WAITING,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.FAIL: J.FAILED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
    J.HELD: {
        JobEvent.APPROVE: J.QUEUED,
        JobEvent.REJECT: J.CANCELLED,
        JobEvent.EXPIRE: J.CANCELLED,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.FAIL: J.FAILED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
    J.WAITING: {
        JobEvent.TIMER_DONE: J.QUEUED,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.FAIL: J.FAILED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
    J.QUEUED: {
        JobEvent.START: J.RUNNING,
        JobEvent.FAIL: J.FAILED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.REQUEUE: J.QUEUED,
        JobEvent.GIVE_UP: J.INFRA_LOST,
        JobEvent.EXPIRE: J.TIMED_OUT_STALE,
    },
    J.RUNNING: {
        JobEvent.SUCCEED: J.SUCCESS,
        JobEvent.FAIL: J.FAILED,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.CANCEL_GRACEFUL: J.CANCELLING,
        JobEvent.LOSE: J.RECOVERING,
        JobEvent.REQUEUE: J.QUEUED,
        JobEvent.GIVE_UP: J.INFRA_LOST,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
    J.RECOVERING: {
        JobEvent.RESUME: J.RUNNING,
        JobEvent.SUCCEED: J.SUCCESS,
        JobEvent.FAIL: J.FAILED,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.CANCEL_GRACEFUL: J.CANCELLING,
        JobEvent.REQUEUE: J.QUEUED,
        JobEvent.GIVE_UP: J.INFRA_LOST,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
    J.CANCELLING: {
        JobEvent.SUCCEED: J.SUCCESS,
        JobEvent.FAIL: J.FAILED,
        JobEvent.SKIP: J.SKIPPED,
        JobEvent.CANCEL: J.CANCELLED,
        JobEvent.CANCEL_FORCE: J.CANCELLED,
        JobEvent.COMPLETE: J.CANCELLED,
        JobEvent.DROP: J.DRIFT_DROPPED,
    },
}

_STEP: dict[StepStatus, dict[StepEvent, StepStatus]] = {
    S.PENDING: {
        StepEvent.START: S.RUNNING,
        StepEvent.SUCCEED: S.SUCCESS,
        StepEvent.FAIL: S.FAILED,
        StepEvent.SKIP: S.SKIPPED,
        StepEvent.CANCEL: S.CANCELLED,
    },
    S.RUNNING: {
        StepEvent.RETRY: S.RUNNING,
        StepEvent.SUCCEED: S.SUCCESS,
        StepEvent.FAIL: S.FAILED,
        StepEvent.SKIP: S.SKIPPED,
        StepEvent.CANCEL: S.CANCELLED,
    },
}
"""From pending straight to an end: the message of the start may come late, or not at all."""


def run_transition(state: RunStatus, event: RunEvent) -> RunStatus | Rejected:
    return _RUN.get(state, {}).get(event) or _rejected("run", state, event, state in TERMINAL_RUN)


def job_transition(state: JobStatus, event: JobEvent) -> JobStatus | Rejected:
    return _JOB.get(state, {}).get(event) or _rejected("job", state, event, state in TERMINAL_JOB)


def step_transition(state: StepStatus, event: StepEvent) -> StepStatus | Rejected:
    return _STEP.get(state, {}).get(event) or _rejected("step", state, event, state in TERMINAL_STEP)


def _rejected(what: str, state: str, event: str, ended: bool) -> Rejected:
    if ended:
        return Rejected(f"the {what} has already ended as {state}")
    return Rejected(f"a {what} that is {state} cannot {event.replace('_', ' ')}")


def roll_up(statuses: Iterable[JobStatus]) -> RunStatus | None:
    """How a run ends whose jobs ended so; None while one of them has not.

    A failure outweighs a cancellation, and a skipped job counts as a success.
    """
    ended = set(statuses)
    if not ended <= TERMINAL_JOB:
        return None
    if ended & FAILED_JOB:
        return R.FAILED
    return R.CANCELLED if J.CANCELLED in ended else R.SUCCESS


def failure_reason(endings: Mapping[str, JobStatus]) -> str | None:
    """`Failed jobs: a, b`, or None if no job failed. `endings` maps a job's name to its status."""
    failed = sorted(name for name, status in endings.items() if status in FAILED_JOB)
    return f"Failed jobs: {', '.join(failed)}" if failed else None
