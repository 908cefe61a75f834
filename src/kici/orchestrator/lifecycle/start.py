"""The one way in which a job starts: its needs are met, its run has its slot, it has a place in its fan-out's window
and a slot in its own concurrency group; then it gets its row in the queue."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from kici.engine import labels
from kici.engine.lifecycle import JobEvent, JobStatus, Rejected
from kici.orchestrator.lifecycle import concurrency, fan_out
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import jobs, queue
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.queue import Enqueue


async def start(db: Db, locked: Locked, ready: Collection[str]) -> list[End]:
    """Take jobs whose needs are met as far as their gates let them. Returns the ends of what they supersede.

    Who is held back is asked again when that gate opens: a slot is handed to the run or the job, a place to the child.
    """
    waiting = {job_id for job_id in ready if locked.jobs[job_id].status is JobStatus.PENDING}
    if not waiting:
        return []
    in_order = sorted(waiting, key=lambda job_id: (locked.jobs[job_id].run_id, locked.jobs[job_id].position))
    held = await concurrency.waiting_runs(db, locked, {locked.jobs[job_id].run_id for job_id in waiting})
    inside = [job_id for job_id in in_order if locked.jobs[job_id].run_id not in held]
    placed = await fan_out.through(db, locked, inside)
    through, ends = await concurrency.join_jobs(db, locked, [job_id for job_id in inside if job_id in placed])
    back = waiting - through
    if back:
        await jobs.hold_back(db, back, set(inside) - placed)
        for job_id in back:
            locked.jobs[job_id] = replace(locked.jobs[job_id], needs_satisfied=True)
    await enqueue(db, locked, through)
    return ends


async def enqueue(db: Db, locked: Locked, job_ids: Collection[str]) -> None:
    """Put jobs that have passed every gate into the queue."""
    moved = [job_id for job_id in job_ids if not isinstance(locked.move_job(job_id, JobEvent.ENQUEUE), Rejected)]
    if not moved:
        return
    starts = await jobs.enqueue(db, moved)
    await queue.enqueue(
        db,
        [
            Enqueue(
                job_id=start.job_id,
                run_id=start.run_id,
                workflow_name=start.workflow_name,
                job_name=start.job_name,
                repository=start.repository,
                requirement=labels.of_job(start.definition),
                priority=start.definition.priority,
                expires_s=locked.limits.queue_timeout_s,
            )
            for start in sorted(starts, key=lambda start: locked.jobs[start.job_id].position)
        ],
    )
    locked.wakes.new_rows = True
    locked.wakes.queue |= any(start.definition.priority > 0 for start in starts)
