"""The window of a fan-out: how many of its jobs have a place, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Collection

from kici.engine import fan_out
from kici.engine.lifecycle import TERMINAL_JOB, JobEvent, JobStatus
from kici.orchestrator.lifecycle import admission_metrics as metrics
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.stop import stop
from kici.orchestrator.store import jobs
from kici.orchestrator.store.database import Db


async def through(db: Db, locked: Locked, ready: Collection[str]) -> set[str]:
    """Those of these jobs that have, or get, a place in their windows. The others are to be held back."""
    windows = {
        (job.run_id, job.base_job_name): job.wave_max_parallel
        for job in map(locked.jobs.__getitem__, ready)
        if job.wave_max_parallel
    }
    passed = {job_id for job_id in ready if not locked.jobs[job_id].wave_max_parallel}
    if windows:
        for key, children in (await jobs.children(db, windows)).items():
            passed |= set(fan_out.through(children, ready, windows[key]))
    return passed


async def after(db: Db, locked: Locked, ended: Collection[str]) -> tuple[list[str], list[End]]:
    """What the ends of these jobs mean for their fan-outs: children that may have a place now, or, where the fan-out is
    halted, the ends of its others. What an agent runs of those is asked to stop."""
    over = [job for job in map(locked.jobs.__getitem__, ended) if job.wave_max_parallel or job.wave_fail_fast]
    if not over:
        return [], []
    halting = {
        (job.run_id, job.base_job_name): fan_out.halted_because(job.job_name, job.status)
        for job in sorted(over, key=lambda job: job.job_name, reverse=True)
        if job.wave_fail_fast and fan_out.halts(job.status)
    }
    opened: list[str] = []
    ends: list[End] = []
    for key, children in (await jobs.children(db, {(job.run_id, job.base_job_name) for job in over})).items():
        still = [child for child in children if child.status not in TERMINAL_JOB]
        if key in halting:
            ends += await _halt(db, locked, [child.job_id for child in still], halting[key])
        else:
            gated = [child.job_id for child in still if child.gated]
            await locked.include_jobs(db, gated)
            opened += gated
    return opened, ends


async def _halt(db: Db, locked: Locked, children: Collection[str], reason: str) -> list[End]:
    await locked.include_jobs(db, children)
    await locked.include_rows(db, children)
    waiting = [job_id for job_id in children if locked.jobs[job_id].status is JobStatus.PENDING]
    begun = [
        job_id
        for job_id in children
        if job_id not in waiting and locked.jobs[job_id].status is not JobStatus.CANCELLING
    ]
    if children:
        locked.wakes.count(metrics.HALTED)
    return [
        *(End(job_id, JobEvent.SKIP, error=reason) for job_id in waiting),
        *await stop(db, locked, begun, reason=reason),
    ]
