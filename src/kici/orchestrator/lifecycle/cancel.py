"""Cancelling a run: what has not begun ends at once, what runs is asked to stop."""

from __future__ import annotations

from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_RUN, JobEvent, JobStatus, Rejected, RunEvent, RunStatus
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import jobs, queue, run_states
from kici.orchestrator.store.database import Db

DEFAULT_LIMITS = Limits()


class CancelResult(Struct, frozen=True):
    status: RunStatus
    """`cancelling` while some agent has not yet answered."""
    cancelled_jobs: int
    """Those that ended at once and those that were asked to stop."""
    wakes: Wakes
    """To be sent after the commit."""


async def cancel_run(
    db: Db, run_id: str, *, by: str, reason: str, force: bool, limits: Limits = DEFAULT_LIMITS
) -> CancelResult:
    """In the caller's transaction. Raises `NotFound`, or `Conflict` if the run has ended.

    With `force`, agents kill without the grace period, and a job whose agent is silent ends at once. A job that is
    being cancelled may be forced.
    """
    locked = Locked(limits)
    locked.runs = await run_states.lock(db, [run_id])
    run = locked.runs.get(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    if run.status in TERMINAL_RUN:
        raise Conflict(f"run {run_id} has already ended as {run.status}")
    locked.jobs = await jobs.lock_open(db, [run_id])
    locked.queue = await queue.lock(db, locked.jobs)
    await run_states.cancelling(db, run_id, by=by, reason=reason)
    stopping = await _ask_to_stop(db, locked, force=force)
    at_once = [
        End(job_id, JobEvent.CANCEL, error=reason) for job_id, job in locked.jobs.items() if job_id not in stopping
    ]
    _tell_agents(locked)
    refused = await end(db, locked, at_once)
    if stopping and not isinstance(locked.move_run(run_id, RunEvent.CANCEL_GRACEFUL), Rejected):
        await run_states.set_status(db, run_id, RunStatus.CANCELLING)
    return CancelResult(locked.runs[run_id].status, len(stopping) + len(at_once) - len(refused), locked.wakes)


async def _ask_to_stop(db: Db, locked: Locked, *, force: bool) -> set[str]:
    """Jobs that an agent runs, or may run. The agent is told by whoever has its socket, now or when it is back."""
    stopping = set()
    for job_id, job in locked.jobs.items():
        if job.status is JobStatus.CANCELLING:
            stopping.add(job_id)
        elif job.status is JobStatus.RUNNING or (job.status is JobStatus.RECOVERING and not force):
            locked.move_job(job_id, JobEvent.CANCEL_GRACEFUL)
            stopping.add(job_id)
    if stopping:
        margin = locked.limits.force_margin_s if force else locked.limits.cancel_margin_s
        await jobs.cancelling(db, stopping, force=force, margin_s=margin)
    return stopping


def _tell_agents(locked: Locked) -> None:
    locked.wakes.sessions |= {job.session_id for job in locked.jobs.values() if job.session_id}
    locked.wakes.sessions |= {row.session_id for row in locked.queue.values() if row.session_id}
