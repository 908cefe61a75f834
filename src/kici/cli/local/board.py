"""Which jobs of a local run wait, run and have ended. The engine decides, as it does for the orchestrator."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import evaluation, expansion, fan_out, lifecycle, needs
from kici.engine.events import Event
from kici.engine.lifecycle import JobStatus, RunStatus
from kici.engine.plan import Plan, PlannedJob, Seed
from kici.errors import KiciError
from kici.wire.context import NeededJob

if TYPE_CHECKING:
    from kici.wire.agent import Annotation
    from kici.wire.runner import JobEnded


class StepRecord(Struct):
    name: str
    continue_on_error: bool
    status: str = "pending"
    attempt: int = 1
    started: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None
    error: str = ""
    reason: str = ""
    signal: str = ""
    last_lines: str = ""
    peak_memory_bytes: int | None = None
    annotations: tuple[Annotation, ...] = ()
    summary: str = ""


class JobRecord(Struct):
    planned: PlannedJob
    steps: list[StepRecord]
    status: JobStatus = JobStatus.PENDING
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    told: JobEnded | None = None
    """By the runner's host; None = it never began."""
    outputs: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.planned.name

    def end(self, status: JobStatus, error: str = "") -> None:
        self.status, self.error, self.ended = status, error, time.time()
        left = {JobStatus.CANCELLED: "cancelled"}.get(status, "skipped")
        for step in self.steps:
            if step.status not in lifecycle.TERMINAL_STEP:
                step.status = left


class Board:
    def __init__(self, plan: Plan, event: Event, only: Collection[str] = ()) -> None:
        """With `only`: these jobs (base names) and what they need. Raises `KiciError` for one that does not exist."""
        self._event = event
        self.jobs: dict[str, JobRecord] = {}
        self._fan_outs: dict[str, list[JobRecord]] = {}
        wanted = _with_needs(plan, _chosen(plan, only))
        self._left_out = {planned.name: planned for planned in plan.jobs if planned.name not in wanted}
        self._put([planned for planned in plan.jobs if planned.name in wanted])
        self._halted: set[str] = set()
        self.warnings: list[str] = list(plan.warnings)

    def ready(self) -> Iterator[JobRecord]:
        """Jobs that may start now. What can never start is ended on the way: skipped, or failed."""
        settled = True
        while settled:
            settled = False
            for job in list(self.jobs.values()):
                if job.status is JobStatus.PENDING:
                    settled = self._settle(job) or settled
        yield from (job for job in self.jobs.values() if job.status is JobStatus.QUEUED)

    def halted(self) -> dict[str, str]:
        """Running jobs that are to stop, each with the reason. Those of their fan-outs that have not begun are ended on
        the way: what had its turn as cancelled, what waited for it as skipped."""
        found = {}
        for base, combinations in self._fan_outs.items():
            halting = next((one for one in combinations if fan_out.halts(one.status)), None)
            if halting is None or base in self._halted or not halting.planned.job.fail_fast:
                continue
            self._halted.add(base)
            reason = fan_out.halted_because(halting.name, halting.status)
            for one in combinations:
                if one.status is JobStatus.RUNNING:
                    found[one.name] = reason
                elif one.status not in lifecycle.TERMINAL_JOB:
                    queued = one.status is JobStatus.QUEUED
                    one.end(JobStatus.CANCELLED if queued else JobStatus.SKIPPED, reason)
        return found

    def needed(self, job: JobRecord) -> tuple[NeededJob, ...]:
        upstream = (self.jobs[need.upstream] for need in job.planned.needs)
        return tuple(
            NeededJob(
                one.name,
                one.planned.job.name,
                one.status.value,
                one.planned.matrix,
                one.outputs,
                one.planned.generated_by,
            )
            for one in upstream
        )

    def place(self, job: JobRecord) -> tuple[int, int]:
        """Among the combinations of its matrix: its index, from 0, and how many there are."""
        combinations = sorted(self._fan_outs[job.planned.job.name], key=lambda one: one.planned.position)
        return combinations.index(job), len(combinations)

    def status(self) -> RunStatus | None:
        """None while a job has not ended."""
        return lifecycle.roll_up(job.status for job in self.jobs.values())

    def failure(self) -> str | None:
        return lifecycle.failure_reason({job.name: job.status for job in self.jobs.values()})

    def cancel_waiting(self, reason: str) -> None:
        for job in self.jobs.values():
            if job.status in (JobStatus.PENDING, JobStatus.QUEUED):
                job.end(JobStatus.CANCELLED, reason)

    def _settle(self, job: JobRecord) -> bool:
        """True if that ended it, or put others in its place, which may settle others."""
        if job.planned.problem:
            job.end(JobStatus.FAILED, job.planned.problem)
            return True
        if job.planned.skip:
            job.end(JobStatus.SKIPPED, job.planned.skip)
            return True
        endings = {one.name: one.status.value for one in self.jobs.values() if one.status in lifecycle.TERMINAL_JOB}
        verdict = needs.decide([needs.Need(one.upstream, one.run_on) for one in job.planned.needs], endings)
        if isinstance(verdict, needs.Skip):
            job.end(JobStatus.SKIPPED, verdict.reason)
            return True
        if isinstance(verdict, needs.Start) and job.planned.seed is not None:
            self._expand(job, job.planned.seed)
            return True
        if isinstance(verdict, needs.Start) and self._has_turn(job):
            job.status = JobStatus.QUEUED
        return False

    def _expand(self, job: JobRecord, seed: Seed) -> None:
        """Put what the evaluation gave in place of the job that stood for it."""
        init = self.jobs[evaluation.init_name(job.name)]
        stand_in = expansion.StandIn(job.name, job.planned.position, job.planned.needs, seed)
        known = [*(one.planned for one in self.jobs.values()), *self._left_out.values()]
        found = expansion.expand(
            stand_in,
            self._event,
            init.outputs.pop(evaluation.STEP, None),
            [
                expansion.Known(one.name, one.job.name, tuple(need.upstream for need in one.needs), one.generated_by)
                for one in known
            ],
        )
        self.warnings += found.warnings
        if found.problem:
            job.end(JobStatus.FAILED, found.problem)
            return
        del self.jobs[job.name]
        self._fan_outs[job.planned.job.name].remove(job)
        names = [one.name for one in found.jobs]
        for other in self.jobs.values():
            other.planned = replace(other.planned, needs=expansion.rewired(other.planned.needs, job.name, names))
        self._left_out = {
            name: replace(one, needs=expansion.rewired(one.needs, job.name, names))
            for name, one in self._left_out.items()
        }
        self._put(found.jobs)
        self._take_in({need.upstream for one in found.jobs for need in one.needs})

    def _take_in(self, names: Collection[str]) -> None:
        """Jobs that were left out, and what they need, once a generated job needs them."""
        wanted = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in self._left_out and name not in wanted:
                wanted.add(name)
                waiting += [need.upstream for need in self._left_out[name].needs]
        self._put([self._left_out.pop(name) for name in sorted(wanted)])

    def _put(self, several: Iterable[PlannedJob]) -> None:
        for planned in several:
            self.jobs[planned.name] = _record(planned)
            self._fan_outs.setdefault(planned.job.name, []).append(self.jobs[planned.name])
        self.jobs = dict(sorted(self.jobs.items(), key=lambda item: item[1].planned.position))

    def _has_turn(self, job: JobRecord) -> bool:
        limit = job.planned.job.max_parallel
        if limit is None:
            return True
        children = [
            fan_out.Child(one.name, one.planned.position, one.status, gated=one.status is JobStatus.PENDING)
            for one in self._fan_outs[job.planned.job.name]
        ]
        return job.name in fan_out.through(children, [job.name], limit)


def _record(planned: PlannedJob) -> JobRecord:
    return JobRecord(planned, [StepRecord(step.name, step.continue_on_error) for step in planned.job.steps])


def _chosen(plan: Plan, only: Collection[str]) -> set[str]:
    """Names with the matrix suffix."""
    known = {planned.job.name for planned in plan.jobs}
    for name in only:
        if name not in known:
            raise KiciError(f"there is no job {name!r}; there are {', '.join(sorted(known))}")
    return {planned.name for planned in plan.jobs if not only or planned.job.name in only}


def _with_needs(plan: Plan, names: Collection[str]) -> set[str]:
    jobs = {planned.name: planned for planned in plan.jobs}
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [need.upstream for need in jobs[name].needs]
    return wanted
