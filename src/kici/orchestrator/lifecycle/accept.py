"""An agent takes what was sent to it: the job runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kici.engine.lifecycle import JobEvent, Rejected, RunEvent
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import attempts, steps
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Acceptance


async def accept(db: Db, locked: Locked, acceptances: Sequence[Acceptance]) -> dict[str, str]:
    """Start the attempts whose claims still stand. Returns job → why not.

    A claim stands as long as nobody has taken it away, even past its ack deadline: after an outage of the database the
    answer may come late through no fault of the agent.
    """
    refused: dict[str, str] = {}
    taken = []
    for one in acceptances:
        reason = _reason_against(locked, one)
        if reason:
            refused[one.job_id] = reason
            continue
        locked.jobs[one.job_id] = replace(
            locked.jobs[one.job_id],
            attempt=one.attempt,
            session_id=one.session_id,
            agent_id=one.agent_id,
            user_code_began=False,
        )
        taken.append(one)
    if taken:
        limits = locked.limits
        await attempts.accept(
            db,
            taken,
            starting=_starting(locked, {locked.jobs[one.job_id].run_id for one in taken}),
            timeout_ms=limits.job_timeout_ms,
            margin_s=limits.timeout_margin_s,
        )
        later = [(one.job_id, one.attempt) for one in taken if one.attempt > 1]
        if later:
            await steps.begin_attempt(db, later)
    return refused


def _reason_against(locked: Locked, one: Acceptance) -> str:
    job, row = locked.jobs[one.job_id], locked.queue.get(one.job_id)
    if job.ended:
        return f"the job has ended as {job.status}"
    if row is None or row.attempt != one.attempt or row.session_id != one.session_id:
        return f"attempt {one.attempt} is not this agent's any more"
    status = locked.move_job(one.job_id, JobEvent.START)
    return status.reason if isinstance(status, Rejected) else ""


def _starting(locked: Locked, run_ids: set[str]) -> list[str]:
    return [
        run_id
        for run_id in run_ids
        if run_id in locked.runs and not isinstance(locked.move_run(run_id, RunEvent.START), Rejected)
    ]
