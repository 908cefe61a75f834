"""The rows that a transaction holds, in the one lock order: session, run, job, queue row, each by id."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from kici.engine.lifecycle import JobEvent, JobStatus, Rejected, RunEvent, RunStatus, job_transition, run_transition
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import jobs, queue, run_states
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Job
from kici.orchestrator.store.queue import QueueRow
from kici.orchestrator.store.run_states import Run


class Locked:
    """Rows as they stand after what the transaction has written so far; rules keep them so.

    Whoever holds a run may lock its waiting jobs late: nobody changes those without the run.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.runs: dict[str, Run] = {}
        self.jobs: dict[str, Job] = {}
        self.queue: dict[str, QueueRow] = {}
        self.wakes = Wakes()
        self.user_code_began: set[str] = set()
        """Jobs of which that is noted above, and to be written unless they end in this transaction."""

    def move_job(self, job_id: str, event: JobEvent) -> JobStatus | Rejected:
        """Ask the engine, and note the new state. The caller writes it."""
        job = self.jobs[job_id]
        status = job_transition(job.status, event)
        if not isinstance(status, Rejected):
            self.jobs[job_id] = replace(job, status=status)
            self.wakes.runs.add(job.run_id)
        return status

    def move_run(self, run_id: str, event: RunEvent) -> RunStatus | Rejected:
        run = self.runs[run_id]
        status = run_transition(run.status, event)
        if not isinstance(status, Rejected):
            self.runs[run_id] = replace(run, status=status)
            self.wakes.runs.add(run_id)
        return status

    def note_moved(self, job_ids: Collection[str], session_id: str) -> None:
        """Queue rows that now belong to this session."""
        for job_id in job_ids:
            self.queue[job_id] = replace(self.queue[job_id], session_id=session_id)


async def lock_jobs(db: Db, limits: Limits, job_ids: Collection[str]) -> Locked:
    """Lock these jobs with their runs and queue rows, waiting for each."""
    locked = Locked(limits)
    places = await jobs.whereabouts(db, job_ids)
    locked.runs = await run_states.lock(db, {run_id for run_id, _ in places.values()})
    locked.jobs = await jobs.lock(db, places)
    locked.queue = await queue.lock(db, places)
    return locked


async def lock_free_jobs(db: Db, limits: Limits, job_ids: Collection[str]) -> Locked:
    """The same for sweepers: what is locked elsewhere is missing and waits for the next pass."""
    locked = Locked(limits)
    places = await jobs.whereabouts(db, job_ids)
    locked.runs = await run_states.lock(db, {run_id for run_id, _ in places.values()}, skip_locked=True)
    free = [job_id for job_id, (run_id, _) in places.items() if run_id in locked.runs]
    locked.jobs = await jobs.lock(db, free, skip_locked=True)
    locked.queue = await queue.lock(db, locked.jobs, skip_locked=True)
    for job_id in await queue.existing(db, locked.jobs.keys() - locked.queue.keys()):
        del locked.jobs[job_id]
    return locked
