"""In which order the steps of a job begin and end: what a runner may say about them, and when.

One after the other, in the order of the lock file. Only the steps of one parallel group run at the same time; they too
begin in their order. A step that does not run ends without a beginning, as skipped or cancelled, when it is its turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from kici.engine.lockfile import LockJob, LockParallel
from kici.errors import KiciError
from kici.wire.runner import JobEnded, StepEnded

_STEP_STATUSES = frozenset({"success", "failed", "skipped", "cancelled"})
_JOB_STATUSES = frozenset({"success", "failed", "cancelled", "skipped", "drift_dropped"})
_WITHOUT_STEPS = frozenset({"skipped", "drift_dropped"})


class ProtocolBroken(KiciError):
    """The runner said what it may not say now. The message says what."""

    code = "protocol_broken"
    status = 400


class StepOrder:
    """Each method raises `ProtocolBroken` for what is not allowed, and then has changed nothing."""

    def __init__(self, job: LockJob) -> None:
        self._job = job
        self._groups = {
            index: group for group in job.parallel for index in range(group.first, group.first + group.size)
        }
        self._next = 0
        """The first step that has neither begun nor ended: those of a group begin in their order too."""
        self._open: dict[int, tuple[int, bool]] = {}
        """Steps that have begun and not ended for good → attempt, and whether it runs (or another one will)."""
        self._statuses: dict[int, str] = {}
        """Of steps that have ended for good."""

    def runs(self, index: int) -> bool:
        return self._open.get(index, (0, False))[1]

    def running(self) -> Iterator[tuple[int, int]]:
        """Steps that run, each with its attempt."""
        yield from ((index, attempt) for index, (attempt, runs) in sorted(self._open.items()) if runs)

    def start(self, index: int, attempt: int) -> None:
        what = f"start of step {index}, attempt {attempt}"
        if index in self._open:
            last, runs = self._open[index]
            _check(not runs and attempt == last + 1, what)
            limit = self._attempts(index)
            _check(attempt <= limit, f"attempt {attempt} of {limit}")
        else:
            _check(attempt == 1 and self._is_turn_of(index), what)
            self._next += 1
        self._open[index] = (attempt, True)

    def end(self, ended: StepEnded) -> None:
        index = ended.index
        _check(ended.status in _STEP_STATUSES, f"step status {ended.status!r}")
        if index not in self._open and ended.status in ("skipped", "cancelled") and ended.attempt == 1 and ended.final:
            _check(self._is_turn_of(index, runs=False), f"end of step {index}, which has not begun")
            self._next += 1
        else:
            _check(self._open.get(index) == (ended.attempt, True), f"end of step {index}")
            if not ended.final:
                _check(ended.status == "failed", f"another attempt of step {index} after {ended.status}")
                _check(ended.attempt < self._attempts(index), f"attempt {ended.attempt + 1} of {self._attempts(index)}")
                self._open[index] = (ended.attempt, False)
                return
            del self._open[index]
        self._statuses[index] = ended.status

    def end_job(self, ended: JobEnded) -> None:
        _check(ended.status in _JOB_STATUSES, f"job status {ended.status!r}")
        _check(not any(runs for _, runs in self._open.values()), "end of the job while a step runs")
        if ended.status == "success":
            done, steps = len(self._statuses), self._job.steps
            _check(done == len(steps), f"success after {done} of {len(steps)} steps")
            bad = next((steps[at].name for at, status in self._statuses.items() if not self._passes(at, status)), None)
            _check(bad is None, f"success although step {bad!r} has not succeeded")
        elif ended.status in _WITHOUT_STEPS:
            _check(set(self._statuses.values()) <= {"skipped"}, f"{ended.status} after a step that has run")

    def _passes(self, index: int, status: str) -> bool:
        return status in ("success", "skipped") or (status == "failed" and self._job.steps[index].continue_on_error)

    def _is_turn_of(self, index: int, *, runs: bool = True) -> bool:
        if index != self._next or index >= len(self._job.steps):
            return False
        group = self._groups.get(index)
        if group is None:
            return not self._open
        return all(self._groups.get(other) is group for other in self._open) and (not runs or self._has_room(group))

    def _has_room(self, group: LockParallel) -> bool:
        return group.max_parallel is None or len(self._open) < group.max_parallel

    def _attempts(self, index: int) -> int:
        retry = self._job.steps[index].retry
        return retry.attempts if retry else 1


def _check(fine: bool, what: str) -> None:
    if not fine:
        raise ProtocolBroken(f"it sent {what}")
