"""Applies one batch of agents' frames inside one transaction: rows locked in the one order, then rule after rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kici.engine.failure import Reason
from kici.engine.lifecycle import TERMINAL_JOB, TERMINAL_STEP, JobEvent, JobStatus, RunStatus, StepStatus
from kici.orchestrator.lifecycle import accept, end, loss, requeue, steps, told
from kici.orchestrator.lifecycle.deadlines import ends_as
from kici.orchestrator.lifecycle.ending import JobFacts
from kici.orchestrator.lifecycle.frames import Busy, Item, Kind, Outcome, Refused, Superseded, Taken
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked, in_free_scopes
from kici.orchestrator.store import attempts, jobs, queue, sessions, storable
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Acceptance, Job
from kici.orchestrator.store.steps import StepWrite
from kici.wire.agent import JobAccepted, JobRejected, JobStatusChanged, StepStatusChanged

_EVENTS = {
    JobStatus.SUCCESS: JobEvent.SUCCEED,
    JobStatus.FAILED: JobEvent.FAIL,
    JobStatus.CANCELLED: JobEvent.CANCEL,
    JobStatus.SKIPPED: JobEvent.SKIP,
    JobStatus.DRIFT_DROPPED: JobEvent.DROP,
}
MAX_ERROR = 10_000
"""Characters of an error message that are kept."""
_LATEST_MS = 253_402_300_799_000
"""The year 9999: an agent's clock says many things."""

F = TypeVar("F", JobAccepted, JobRejected, StepStatusChanged, JobStatusChanged)


class Batch:
    """`outcomes` holds the answer to every item, by its number, once `apply` has returned."""

    def __init__(self, limits: Limits, items: Sequence[Item]) -> None:
        self.locked = Locked(limits)
        self.outcomes: dict[int, Outcome] = {}
        self.repeated = 0
        """Items that told what was known."""
        self._items = items
        self._runs: dict[str, str] = {}

    async def apply(self, db: Db) -> None:
        await self._check_sessions(db)
        await self._lock(db)
        await self._accept(db)
        await self._give_back(db)
        await self._record_steps(db)
        await self._begin_cancelling(db)
        await self._end(db)
        await steps.note_user_code(db, self.locked)

    def _open(self) -> Iterable[Item]:
        return [item for item in self._items if item.number not in self.outcomes]

    def _of(self, kind: type[F]) -> list[tuple[Item, F]]:
        return [(item, item.frame) for item in self._open() if isinstance(item.frame, kind)]

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_sessions(self, db: Db) -> None:
        """A job must not start under a session that is lost: nobody would ever find it silent."""
        keep = any(isinstance(item.frame, JobAccepted) for item in self._items)
        states = await sessions.states(db, {item.session.id for item in self._items}, keep=keep)
        for item in self._items:
            state = states.get(item.session.id)
            if state is not None and state.closed:
                self.outcomes[item.number] = Superseded()
            elif isinstance(item.frame, JobAccepted) and (state is None or state.lost):
                self._put_off(item.job_id)

    async def _lock(self, db: Db) -> None:
        """Scopes, runs, jobs, queue rows. What is locked elsewhere waits for a later batch, with all frames of its
        job."""
        places = await jobs.whereabouts(db, {item.job_id for item in self._open()})
        for item in self._open():
            if item.job_id not in places:
                self.outcomes[item.number] = Refused(f"there is no job {item.job_id}", Kind.UNKNOWN)
        self._runs = {job_id: place.run_id for job_id, place in places.items()}
        with_run = {item.job_id for item in self._open() if _touches_run(item, places[item.job_id].run_status)}
        with_row = {item.job_id for item in self._open() if _touches_queue(item)}
        free = await attempts.lock_free(
            db,
            runs=await in_free_scopes(db, [places[job_id] for job_id in with_run]),
            job_ids={item.job_id for item in self._open()},
            rows=with_row,
        )
        self.locked.runs = {run.run_id: run for run in free.runs}
        self.locked.jobs = {
            job.job_id: job for job in free.jobs if job.job_id not in with_run or job.run_id in self.locked.runs
        }
        self.locked.queue = {row.id: row for row in free.rows if row.id in self.locked.jobs}
        missing = (with_row & self.locked.jobs.keys()) - self.locked.queue.keys()
        for job_id in await queue.existing(db, missing) if missing else ():
            del self.locked.jobs[job_id]
        for job_id in {item.job_id for item in self._open()} - self.locked.jobs.keys():
            self._put_off(job_id)

    def _put_off(self, job_id: str) -> None:
        for item in self._items:
            if item.job_id == job_id:
                self.outcomes.setdefault(item.number, Busy())

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _accept(self, db: Db) -> None:
        asked: dict[str, tuple[Item, Acceptance]] = {}
        for item, frame in self._of(JobAccepted):
            job = self.locked.jobs[item.job_id]
            if job.attempt == frame.attempt and job.session_id == item.session.id:
                self._told_before(item)
            elif item.job_id in asked:
                self.outcomes[item.number] = Busy()
            else:
                acceptance = Acceptance(item.job_id, frame.attempt, item.session.id, item.session.agent_id)
                asked[item.job_id] = item, acceptance
        if not asked:
            return
        refused = await accept.accept(db, self.locked, [acceptance for _, acceptance in asked.values()])
        for job_id, (item, _) in asked.items():
            self.outcomes[item.number] = Refused(refused[job_id], Kind.ATTEMPT) if job_id in refused else Taken()

    def _told_before(self, item: Item) -> None:
        self.outcomes[item.number] = Taken()
        self.repeated += 1

    async def _give_back(self, db: Db) -> None:
        backs: dict[str, str] = {}
        for item, frame in self._of(JobRejected):
            row = self.locked.queue.get(item.job_id)
            self.outcomes[item.number] = Taken()
            if (
                row is not None
                and (row.attempt, row.session_id) == (frame.attempt, item.session.id)
                and row.accepted_at is None
                and item.job_id not in backs
            ):
                backs[item.job_id] = f"agent {item.session.agent_id} did not take it ({frame.reason})"
        await requeue.give_back(db, self.locked, backs)

    async def _record_steps(self, db: Db) -> None:
        changes: list[tuple[Item, StepWrite]] = []
        for item, frame in self._of(StepStatusChanged):
            refusal = self._against(item, frame.attempt)
            if refusal:
                self.outcomes[item.number] = refusal
                continue
            change = self._step_write(item, frame)
            if isinstance(change, Refused):
                self.outcomes[item.number] = change
                continue
            changes.append((item, change))
        answers = await steps.record(db, self.locked, [change for _, change in changes])
        for (item, _), reason in zip(changes, answers, strict=True):
            self.outcomes[item.number] = Refused(reason, Kind.ENDED) if reason else Taken()

    def _step_write(self, item: Item, frame: StepStatusChanged) -> StepWrite | Refused:
        try:
            status = StepStatus(frame.status)
        except ValueError:
            return Refused(f"{frame.status!r} is no status of a step")
        if status is StepStatus.PENDING:
            return Refused("a step does not become pending")
        ended = status in TERMINAL_STEP
        started = frame.started_at_ms if ended else frame.at_ms
        correct = _corrector(item.session.skew_ms)
        return StepWrite(
            job_id=frame.job_id,
            run_id=self._runs[frame.job_id],
            attempt=frame.attempt,
            step_index=frame.step_index,
            name=storable.text(frame.name),
            status=status,
            step_attempt=frame.step_attempt,
            started_at_ms=correct(started) if started else None,
            completed_at_ms=correct(frame.at_ms) if ended else None,
            exit_code=told.code_within_limits(frame.exit_code),
            error=_error(frame),
            log_chunks=frame.log_chunks if ended else None,
            annotations=told.within_limits(frame.annotations) if ended else (),
            summary=told.summary_within_limits(frame.summary) if ended else "",
            reason=told.word_within_limits(frame.reason) if ended else "",
            signal=told.word_within_limits(frame.signal) if ended else "",
            last_lines=told.lines_within_limits(frame.last_lines) if ended else "",
            peak_memory_bytes=told.bytes_within_limits(frame.peak_memory_bytes) if ended else None,
        )

    async def _begin_cancelling(self, db: Db) -> None:
        begun = set()
        for item, frame in self._of(JobStatusChanged):
            if frame.status != JobStatus.CANCELLING:
                continue
            refusal = self._against(item, frame.attempt)
            job = self.locked.jobs[item.job_id]
            self.outcomes[item.number] = refusal or Taken()
            if not refusal and not job.ended and job.status is not JobStatus.CANCELLING:
                self.locked.move_job(item.job_id, JobEvent.CANCEL_GRACEFUL)
                begun.add(item.job_id)
        if begun:
            await jobs.cancelling(db, begun, force=False, margin_s=self.locked.limits.cancel_margin_s, requested=False)

    async def _end(self, db: Db) -> None:
        ends: dict[str, tuple[Item, end.End]] = {}
        without_room: dict[str, str] = {}
        for item, frame in self._of(JobStatusChanged):
            refusal = self._against(item, frame.attempt)
            job = self.locked.jobs[item.job_id]
            if refusal:
                self.outcomes[item.number] = refusal
            elif frame.status not in _EVENTS:
                self.outcomes[item.number] = Refused(f"an agent cannot end a job as {frame.status!r}")
            elif job.ended:
                if job.status == ends_as(job.timed_out, frame.status):
                    self._told_before(item)
                else:
                    self.outcomes[item.number] = Refused(f"the job has already ended as {job.status}", Kind.ENDED)
            elif item.job_id in ends or item.job_id in without_room:
                self.outcomes[item.number] = Busy()
            elif _found_no_room(job, frame):
                without_room[item.job_id] = f"agent {item.session.agent_id}: {_error(frame)}"
                self.outcomes[item.number] = Taken()
            else:
                ends[item.job_id] = item, _end_of(job, frame)
        if without_room:
            await loss.settle(db, self.locked, without_room, reason=Reason.DISK_FULL)
        if not ends:
            return
        refused = await end.end(db, self.locked, [one for _, one in ends.values()])
        for job_id, (item, _) in ends.items():
            self.outcomes[item.number] = Refused(refused[job_id], Kind.ENDED) if job_id in refused else Taken()

    def _against(self, item: Item, attempt: int) -> Refused | None:
        """The fence: why a frame about this attempt is not taken; None if it is the current one of this session."""
        job = self.locked.jobs[item.job_id]
        if attempt < job.attempt:
            return Refused(f"attempt {attempt} is over: the job is at attempt {job.attempt}", Kind.ATTEMPT)
        if attempt > job.attempt:
            return Refused(f"attempt {attempt} was not accepted", Kind.ATTEMPT)
        if job.session_id is None:
            over = f"the job has ended as {job.status}" if job.ended else "the job waits for its next attempt"
            return Refused(f"attempt {attempt} is over: {over}", Kind.ATTEMPT)
        if job.session_id != item.session.id:
            return Refused(f"attempt {attempt} belongs to another agent", Kind.SESSION)
        return None


def _touches_run(item: Item, run_status: str) -> bool:
    match item.frame:
        case JobAccepted():
            return run_status == RunStatus.PENDING
        case JobStatusChanged(status=status):
            return status in TERMINAL_JOB
    return False


def _touches_queue(item: Item) -> bool:
    match item.frame:
        case JobAccepted() | JobRejected():
            return True
        case JobStatusChanged(status=status):
            return status in TERMINAL_JOB
    return False


def _found_no_room(job: Job, frame: JobStatusChanged) -> bool:
    """The machine's fault, and none of the job's code has run: the attempt is lost, another machine may have room."""
    return (
        frame.status == JobStatus.FAILED
        and frame.failed_before_user_code
        and frame.reason == Reason.DISK_FULL
        and not job.user_code_began
        and not job.timed_out
    )


def _end_of(job: Job, frame: JobStatusChanged) -> end.End:
    error = _error(frame)
    early = {"scope": "job", "category": "preparation", "message": error, "jobName": job.job_name}
    return end.End(
        frame.job_id,
        _EVENTS[JobStatus(ends_as(job.timed_out, frame.status))],
        error=error,
        outputs=storable.json(frame.outputs) if frame.outputs else None,
        init_failure=early if frame.failed_before_user_code else None,
        reported=True,
        facts=JobFacts(
            "" if job.timed_out else told.word_within_limits(frame.reason),
            told.code_within_limits(frame.exit_code),
            told.word_within_limits(frame.signal),
            told.bytes_within_limits(frame.peak_memory_bytes),
        ),
    )


def _error(frame: StepStatusChanged | JobStatusChanged) -> str:
    return storable.text(frame.error[:MAX_ERROR])


def _corrector(skew_ms: int) -> Callable[[int], int]:
    return lambda at_ms: min(max(at_ms - skew_ms, 0), _LATEST_MS)
