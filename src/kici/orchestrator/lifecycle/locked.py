"""The rows that a transaction holds, in the one lock order: agent session, scope of concurrency groups, run, job, queue
row, each by id.

Only ends and starts touch other runs, and only such of the same scope, so whoever holds the scope may lock these late.
Batches of agents' frames hold rows of jobs without their runs; so that nobody waits for each other in a circle they
never wait: what they cannot have at once makes them try again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from kici.engine.lifecycle import JobEvent, JobStatus, Rejected, RunEvent, RunStatus, job_transition, run_transition
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import concurrency, jobs, queue, run_states
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Job, Place
from kici.orchestrator.store.queue import QueueRow
from kici.orchestrator.store.run_states import Run


class Locked:
    """Rows as they stand after what the transaction has written so far; rules keep them so.

    Whoever holds a run may lock its jobs late, and whoever holds a scope its runs: the `include` functions.
    """

    def __init__(self, limits: Limits, *, waits: bool = False) -> None:
        """Without `waits`, a late lock that is not free raises `LockNotAvailableError`: the transaction is to be tried
        again from its beginning."""
        self.limits = limits
        self.runs: dict[str, Run] = {}
        self.jobs: dict[str, Job] = {}
        self.queue: dict[str, QueueRow] = {}
        self.wakes = Wakes()
        self.user_code_began: set[str] = set()
        """Jobs of which that is noted above, and to be written unless they end in this transaction."""
        self._waits = waits

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

    def open_jobs(self, run_id: str) -> set[str]:
        """Those of this run that are locked and have not ended."""
        return {job_id for job_id, job in self.jobs.items() if job.run_id == run_id and not job.ended}

    def startable(self, run_id: str) -> list[str]:
        """Those of this run that are locked and whose needs are met: they wait for another gate, or for none."""
        return [
            job_id
            for job_id in self.open_jobs(run_id)
            if self.jobs[job_id].status is JobStatus.PENDING and self.jobs[job_id].needs_satisfied
        ]

    def wake_agents(self, job_ids: Iterable[str]) -> None:
        """Whoever has these jobs, or was sent them, looks what it is to do."""
        for job_id in job_ids:
            row = self.queue.get(job_id)
            self.wakes.sessions |= {
                session for session in (self.jobs[job_id].session_id, row and row.session_id) if session
            }

    async def include_runs(self, db: Db, run_ids: Collection[str]) -> None:
        """Lock other runs of a scope that is held."""
        new = set(run_ids) - self.runs.keys()
        if new:
            self.runs |= await run_states.lock(db, new, wait=self._waits)

    async def include_jobs(self, db: Db, job_ids: Collection[str]) -> None:
        """Lock jobs of runs that are held."""
        new = set(job_ids) - self.jobs.keys()
        if new:
            self.jobs |= await jobs.lock(db, new, wait=self._waits)

    async def include_open_jobs(self, db: Db, run_id: str) -> None:
        """Lock all jobs of a held run that have not ended, with their queue rows."""
        found = await jobs.lock_of_runs(db, [run_id], wait=self._waits)
        self.jobs |= {job_id: job for job_id, job in found.items() if job_id not in self.jobs}
        await self.include_rows(db, found)

    async def include_rows(self, db: Db, job_ids: Collection[str]) -> None:
        """Lock the queue rows of held jobs; not all have one."""
        new = set(job_ids) - self.queue.keys()
        if new:
            self.queue |= await queue.lock(db, new, wait=self._waits)


async def lock_jobs(db: Db, limits: Limits, job_ids: Collection[str]) -> Locked:
    """Lock these jobs with their scopes, runs and queue rows, waiting for each."""
    locked = Locked(limits, waits=True)
    places = await jobs.whereabouts(db, job_ids)
    await concurrency.lock_scopes(db, {place.scope for place in places.values() if place.scope})
    locked.runs = await run_states.lock(db, {place.run_id for place in places.values()})
    locked.jobs = await jobs.lock(db, places)
    locked.queue = await queue.lock(db, places)
    return locked


async def lock_free_jobs(db: Db, limits: Limits, job_ids: Collection[str]) -> Locked:
    """The same for sweepers: what is locked elsewhere is missing and waits for the next pass."""
    locked = Locked(limits, waits=True)
    places = await jobs.whereabouts(db, job_ids)
    locked.runs = await lock_free_runs(db, places.values())
    free = [job_id for job_id, place in places.items() if place.run_id in locked.runs]
    locked.jobs = await jobs.lock(db, free, skip_locked=True)
    locked.queue = await queue.lock(db, locked.jobs, skip_locked=True)
    for job_id in await queue.existing(db, locked.jobs.keys() - locked.queue.keys()):
        del locked.jobs[job_id]
    return locked


async def lock_runs(db: Db, limits: Limits, run_ids: Collection[str], *, ended_jobs: bool = False) -> Locked:
    """Lock these runs with their scopes, their jobs that have not ended (or all) and the queue rows of those, waiting
    for each. Unknown runs are missing."""
    locked = Locked(limits, waits=True)
    scopes = await run_states.scopes(db, run_ids)
    await concurrency.lock_scopes(db, {scope for scope in scopes.values() if scope})
    locked.runs = await run_states.lock(db, scopes)
    locked.jobs = await jobs.lock_of_runs(db, scopes, ended=ended_jobs)
    locked.queue = await queue.lock(db, locked.jobs)
    return locked


async def lock_free_runs(db: Db, places: Iterable[Place]) -> dict[str, Run]:
    """Lock the runs of these places with their scopes. Those of which either is locked elsewhere are missing."""
    runs = await in_free_scopes(db, places)
    return await run_states.lock(db, runs, skip_locked=True) if runs else {}


async def in_free_scopes(db: Db, places: Iterable[Place]) -> set[str]:
    """Lock the scopes of these places. Returns the runs whose scope could be locked at once, or that have none."""
    wanted = {place.run_id: place.scope for place in places}
    scopes = {scope for scope in wanted.values() if scope}
    free = await concurrency.try_lock_scopes(db, scopes) if scopes else set()
    return {run_id for run_id, scope in wanted.items() if not scope or scope in free}
