"""Which jobs of a local run wait, run and have ended. The engine decides, as it does for the orchestrator."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct

from kici.engine import fan_out, lifecycle, needs
from kici.engine.lifecycle import JobStatus, RunStatus
from kici.engine.plan import Plan, PlannedJob
from kici.errors import KiciError
from kici.wire.context import NeededJob


class StepRecord(Struct):
    name: str
    continue_on_error: bool
    status: str = "pending"
    attempt: int = 1
    started: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None
    error: str = ""


class JobRecord(Struct):
    planned: PlannedJob
    steps: list[StepRecord]
    status: JobStatus = JobStatus.PENDING
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
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
    def __init__(self, plan: Plan, only: Collection[str] = ()) -> None:
        """With `only`: these jobs (base names) and what they need. Raises `KiciError` for one that does not exist."""
        wanted = _with_needs(plan, only)
        self.jobs = {
            planned.name: JobRecord(
                planned, [StepRecord(step.name, step.continue_on_error) for step in planned.job.steps]
            )
            for planned in plan.jobs
            if planned.name in wanted
        }
        self._fan_outs: dict[str, list[JobRecord]] = {}
        for job in self.jobs.values():
            self._fan_outs.setdefault(job.planned.job.name, []).append(job)
        self._halted: set[str] = set()

    def ready(self) -> Iterator[JobRecord]:
        """Jobs that may start now. What can never start is ended on the way: skipped, or failed."""
        settled = True
        while settled:
            settled = False
            for job in self.jobs.values():
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
            NeededJob(one.name, one.planned.job.name, one.status.value, one.planned.matrix, one.outputs)
            for one in upstream
        )

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
        """True if that ended it, which may settle others."""
        if job.planned.problem:
            job.end(JobStatus.FAILED, job.planned.problem)
            return True
        endings = {one.name: one.status.value for one in self.jobs.values() if one.status in lifecycle.TERMINAL_JOB}
        verdict = needs.decide([needs.Need(one.upstream, one.run_on) for one in job.planned.needs], endings)
        if isinstance(verdict, needs.Skip):
            job.end(JobStatus.SKIPPED, verdict.reason)
            return True
        if isinstance(verdict, needs.Start) and self._has_turn(job):
            job.status = JobStatus.QUEUED
        return False

    def _has_turn(self, job: JobRecord) -> bool:
        limit = job.planned.job.max_parallel
        if limit is None:
            return True
        children = [
            fan_out.Child(one.name, one.planned.position, one.status, gated=one.status is JobStatus.PENDING)
            for one in self._fan_outs[job.planned.job.name]
        ]
        return job.name in fan_out.through(children, [job.name], limit)


def _with_needs(plan: Plan, only: Collection[str]) -> set[str]:
    jobs = {planned.name: planned for planned in plan.jobs}
    if not only:
        return set(jobs)
    known = {planned.job.name for planned in plan.jobs}
    for name in only:
        if name not in known:
            raise KiciError(f"there is no job {name!r}; there are {', '.join(sorted(known))}")
    wanted: set[str] = set()
    waiting = [planned.name for planned in plan.jobs if planned.job.name in only]
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [need.upstream for need in jobs[name].needs]
    return wanted
