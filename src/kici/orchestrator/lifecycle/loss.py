"""Agents that fall silent, come back, or are known to have lost what they ran."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from kici.engine.failure import Reason
from kici.engine.lifecycle import JobEvent, JobStatus, Rejected
from kici.orchestrator.lifecycle import steps
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.ending import JobFacts, of_stopped
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.requeue import requeue
from kici.orchestrator.lifecycle.retry import next_attempt_in, starts_by_itself
from kici.orchestrator.store import jobs
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Job


async def fall_silent(db: Db, locked: Locked, job_ids: Collection[str], *, heard_s: float) -> None:
    """Their agent was last heard `heard_s` ago. Running jobs are recovering now; claims and cancellations have
    deadlines of their own.

    The next attempt starts by itself only where the dispatch has told the agent so, and it kills. Any other agent runs
    on, and whether its user code has begun since we last heard of it nobody knows: its job waits for it.
    """
    limits = locked.limits
    by_retry: dict[bool, list[str]] = {True: [], False: []}
    for job_id in job_ids:
        if not isinstance(locked.move_job(job_id, JobEvent.LOSE), Rejected):
            by_retry[_starts_by_itself(locked, job_id)].append(job_id)
    for retries, ids in by_retry.items():
        if ids:
            await jobs.recovering(
                db,
                ids,
                heard_s=heard_s,
                retry_s=limits.recovery_s + limits.overlap_margin_s if retries else None,
                report_s=limits.report_window_s,
            )


async def resume(db: Db, locked: Locked, job_ids: Collection[str], session_id: str) -> None:
    """Their agent is back and has them still, under this session."""
    back = []
    for job_id in job_ids:
        if locked.jobs[job_id].status is JobStatus.RECOVERING:
            locked.move_job(job_id, JobEvent.RESUME)
        locked.jobs[job_id] = replace(locked.jobs[job_id], session_id=session_id)
        back.append(job_id)
    if back:
        await jobs.resume(db, back, session_id)


async def settle(db: Db, locked: Locked, lost: Mapping[str, str], *, reason: Reason | None = None) -> None:
    """It is known that these attempts (job → why) do not run any more: the next attempt, or the end.

    `reason` is the kind of that end, where it is not that the machine was lost.
    """
    again: dict[str, float] = {}
    ends: list[End] = []
    for job_id, why in lost.items():
        job = locked.jobs[job_id]
        if job.ended or job.status is JobStatus.PENDING:
            continue
        delay = _next_attempt_in(locked, job_id)
        if job.status is JobStatus.CANCELLING:
            ends.append(of_stopped(job, JobEvent.COMPLETE, why))
        elif delay is not None:
            again[job_id] = delay
        else:
            given_up = _given_up(job, why, attempts=_used(locked, job_id))
            ends.append(replace(given_up, facts=JobFacts(reason)) if reason else given_up)
    begun = {job_id: lost[job_id] for job_id in again if locked.jobs[job_id].status is not JobStatus.QUEUED}
    if begun:
        await steps.abandon(db, locked, begun)
    await requeue(db, locked, again, why=lost)
    if ends:
        await end(db, locked, ends)


async def give_up(db: Db, locked: Locked, lost: Mapping[str, str]) -> None:
    """The agents of these attempts (job → why) may report no longer, and may still run them: there is no next one."""
    await end(db, locked, [End(job_id, JobEvent.GIVE_UP, error=why) for job_id, why in lost.items()])


async def forsake(db: Db, locked: Locked, lost: Mapping[str, str]) -> None:
    """These attempts (job → why) may still run for a while, and their agent may never report again."""
    claimed = {job_id for job_id in lost if locked.jobs[job_id].status is JobStatus.QUEUED}
    running = [job_id for job_id in lost if locked.jobs[job_id].status is JobStatus.RUNNING]
    await fall_silent(db, locked, running, heard_s=0)
    cancelled = [job_id for job_id in lost if locked.jobs[job_id].status is JobStatus.CANCELLING]
    over = [
        job_id
        for job_id in lost
        if locked.jobs[job_id].status is JobStatus.RECOVERING and not _starts_by_itself(locked, job_id)
    ]
    await settle(db, locked, {job_id: lost[job_id] for job_id in (*claimed, *cancelled)})
    await give_up(db, locked, {job_id: lost[job_id] for job_id in over})


def _given_up(job: Job, why: str, *, attempts: int) -> End:
    if job.status is JobStatus.QUEUED:
        return End(job.job_id, JobEvent.FAIL, error=f"{why}; that was attempt {attempts}, the last one")
    if job.user_code_began and job.retry_on_infra is None:
        why = f"{why}; its own code had begun and it has no retry_on_infra, so it is not run again (attempt {attempts})"
    else:
        why = f"{why}; no attempt is left after {attempts}"
    return End(job.job_id, JobEvent.GIVE_UP, error=why)


def _used(locked: Locked, job_id: str) -> int:
    row = locked.queue.get(job_id)
    return row.used if row is not None else locked.jobs[job_id].attempt


def _starts_by_itself(locked: Locked, job_id: str) -> bool:
    job = locked.jobs[job_id]
    return starts_by_itself(policy=job.retry_on_infra, used=_used(locked, job_id), limits=locked.limits)


def _next_attempt_in(locked: Locked, job_id: str) -> float | None:
    job, row = locked.jobs[job_id], locked.queue.get(job_id)
    if row is None:
        return None
    return next_attempt_in(
        user_code_began=job.user_code_began and job.status is not JobStatus.QUEUED,
        policy=job.retry_on_infra,
        used=row.used,
        limits=locked.limits,
    )
