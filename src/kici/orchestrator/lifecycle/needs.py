"""What a job's end means for the jobs that need it."""

from __future__ import annotations

from collections.abc import Collection

from kici.engine import labels
from kici.engine.lifecycle import JobEvent, Rejected
from kici.engine.needs import Skip, Start, decide
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import jobs, needs, queue
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.queue import Enqueue


async def release(db: Db, locked: Locked, ended: Collection[str]) -> dict[str, str]:
    """Enqueue the dependants that may start. Returns job → reason of those to be skipped.

    The runs are locked: of two jobs that end at once, on whatever coordinators, the second sees the first one's end.
    """
    waiting = await needs.dependants(db, ended)
    locked.jobs |= await jobs.lock(db, {one.job_id for one in waiting} - locked.jobs.keys())
    ready: list[str] = []
    skipped: dict[str, str] = {}
    for one in waiting:
        match decide(one.needs, one.endings):
            case Start():
                if not isinstance(locked.move_job(one.job_id, JobEvent.ENQUEUE), Rejected):
                    ready.append(one.job_id)
            case Skip(reason):
                skipped[one.job_id] = reason
    if ready:
        await _enqueue(db, locked, ready)
    return skipped


async def _enqueue(db: Db, locked: Locked, job_ids: Collection[str]) -> None:
    starts = await jobs.enqueue(db, job_ids)
    await queue.enqueue(
        db,
        [
            Enqueue(
                job_id=start.job_id,
                run_id=start.run_id,
                workflow_name=start.workflow_name,
                job_name=start.job_name,
                repository=start.repository,
                requirement=labels.requirement(start.definition.runs_on, start.definition.exclude_labels),
                priority=start.definition.priority,
                expires_s=locked.limits.queue_timeout_s,
            )
            for start in starts
        ],
    )
    locked.wakes.new_rows = True
    locked.wakes.queue |= any(start.definition.priority > 0 for start in starts)
