"""Jobs that nobody has taken in time."""

from __future__ import annotations

from collections.abc import Mapping

from kici.engine.lifecycle import JobEvent
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store.database import Db


async def expire(db: Db, locked: Locked, reasons: Mapping[str, str]) -> int:
    """End those of these jobs (job → why) that are still free; who has been claimed meanwhile has found an agent."""
    stale = [
        End(job_id, JobEvent.EXPIRE, error=why)
        for job_id, why in reasons.items()
        if job_id in locked.jobs and job_id in locked.queue and locked.queue[job_id].session_id is None
    ]
    refused = await end(db, locked, stale)
    return len(stale) - len(refused)
