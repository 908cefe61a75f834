"""Jobs that their agents should have stopped: asked to stop, then to kill, then ended without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from kici.engine import timeouts
from kici.engine.lifecycle import JobEvent, JobStatus, Rejected
from kici.orchestrator.lifecycle.end import end
from kici.orchestrator.lifecycle.ending import of_stopped
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import deadlines, jobs, sessions
from kici.orchestrator.store.database import Db


async def time_out(db: Db, locked: Locked, job_ids: Collection[str]) -> int:
    """Ask the agents of those of these locked jobs that are overdue to stop them: they end as failed.

    Returns how many were asked.
    """
    limits = locked.limits
    reasons = {}
    for job_id, timeout_ms in (await deadlines.passed(db, job_ids, limits.job_timeout_ms)).items():
        if isinstance(locked.move_job(job_id, JobEvent.CANCEL_GRACEFUL), Rejected):
            continue
        job = locked.jobs[job_id]
        reasons[job_id] = f"{timeouts.of_job(timeout_ms)}, and agent {job.agent_id} did not stop it"
        locked.jobs[job_id] = replace(job, timed_out=reasons[job_id])
    if reasons:
        await deadlines.time_out(db, reasons)
        await jobs.cancelling(db, reasons, force=False, margin_s=limits.cancel_margin_s)
        locked.wake_agents(reasons)
    return len(reasons)


async def end_cancelled(db: Db, locked: Locked, overdue: Mapping[str, str]) -> int:
    """Jobs (job → why) whose agents have not said in time how what they were to stop ended. Returns how many ended.

    An agent that is there is first told to kill. What it does not answer to that either, or what nobody is there to
    kill, ends.
    """
    there = await sessions.present(
        db, {locked.jobs[job_id].session_id or "" for job_id in overdue if locked.jobs[job_id].session_id}
    )
    killing = [
        job_id for job_id in overdue if not locked.jobs[job_id].cancel_force and locked.jobs[job_id].session_id in there
    ]
    if killing:
        await deadlines.force(db, killing, margin_s=locked.limits.force_margin_s)
        locked.wake_agents(killing)
    ends = [
        of_stopped(locked.jobs[job_id], JobEvent.CANCEL_FORCE, why)
        for job_id, why in overdue.items()
        if job_id not in killing
    ]
    refused = await end(db, locked, ends)
    return len(ends) - len(refused)


def ends_as(timed_out: str | None, reported: str) -> str:
    """The end that an agent reports of a job, as it counts: what was stopped for taking too long has failed."""
    return JobStatus.FAILED if timed_out and reported == JobStatus.CANCELLED else reported
