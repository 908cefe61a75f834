"""Stopping jobs and runs that have not ended: what no agent runs ends at once, what runs is asked to stop."""

from __future__ import annotations

from collections.abc import Collection

from kici.engine.lifecycle import JobEvent, JobStatus, Rejected, RunEvent, RunStatus
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import jobs, run_states
from kici.orchestrator.store.database import Db


async def stop(db: Db, locked: Locked, job_ids: Collection[str], *, reason: str, force: bool = False) -> list[End]:
    """Ask agents to stop those of these jobs that they run or may run, and return the ends of the others.

    An agent is told by whoever has its socket, now or when it is back. With `force` it kills without the grace period,
    and a job whose agent is silent ends at once; a job that is being stopped may be forced.
    """
    stopping = set()
    for job_id in job_ids:
        match locked.jobs[job_id].status:
            case JobStatus.CANCELLING:
                stopping.add(job_id)
            case JobStatus.RUNNING | JobStatus.RECOVERING as status:
                if status is JobStatus.RUNNING or not force:
                    locked.move_job(job_id, JobEvent.CANCEL_GRACEFUL)
                    stopping.add(job_id)
    if stopping:
        margin = locked.limits.force_margin_s if force else locked.limits.cancel_margin_s
        await jobs.cancelling(db, stopping, force=force, margin_s=margin, reason=reason)
    locked.wake_agents(job_ids)
    return [End(job_id, JobEvent.CANCEL, error=reason) for job_id in job_ids if job_id not in stopping]


async def stop_run(db: Db, locked: Locked, run_id: str, *, by: str, reason: str, force: bool = False) -> list[End]:
    """The same for all jobs of a run, which is locked with them. Dependants end, too, whatever they would accept."""
    await run_states.cancelling(db, run_id, by=by, reason=reason)
    open_jobs = locked.open_jobs(run_id)
    ends = await stop(db, locked, open_jobs, reason=reason, force=force)
    if len(ends) < len(open_jobs) and not isinstance(locked.move_run(run_id, RunEvent.CANCEL_GRACEFUL), Rejected):
        await run_states.set_status(db, run_id, RunStatus.CANCELLING)
    return ends
