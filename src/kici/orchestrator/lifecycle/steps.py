"""What becomes of the steps: as their agent tells it, or together with their job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from kici.engine.failure import Reason
from kici.engine.lifecycle import (
    TERMINAL_STEP,
    JobStatus,
    Rejected,
    StepEvent,
    StepStatus,
    step_transition,
)
from kici.orchestrator.lifecycle import completions
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import attempts, jobs, outbox, steps
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Ending
from kici.orchestrator.store.outbox import Put
from kici.orchestrator.store.steps import Settled, Settlement, StepKey, StepWrite

COMPACT_LOG = "compact_log"
LATE_CHUNKS_S = 5.0
"""A log whose number of chunks nobody has told is compacted this much later: the rest may be on its way."""

_EVENTS = {
    StepStatus.SUCCESS: StepEvent.SUCCEED,
    StepStatus.FAILED: StepEvent.FAIL,
    StepStatus.SKIPPED: StepEvent.SKIP,
    StepStatus.CANCELLED: StepEvent.CANCEL,
}
_WITH_JOB = {
    JobStatus.SUCCESS: (StepStatus.SUCCESS, StepStatus.SKIPPED),
    JobStatus.SKIPPED: (StepStatus.SKIPPED, StepStatus.SKIPPED),
    JobStatus.CANCELLED: (StepStatus.CANCELLED, StepStatus.CANCELLED),
}
"""A job's end → what its running and its pending steps become; of all other ends failed and skipped."""


async def record(db: Db, locked: Locked, changes: Sequence[StepWrite]) -> list[str]:
    """Write what agents tell of steps of locked jobs, in whatever order it came. Returns the refusals, "" = taken.

    A late `running` never overwrites an end, and the same end told twice is taken twice.
    """
    if not changes:
        return []
    keys = {_key(change) for change in changes}
    states = await steps.states(db, keys)
    writes: dict[StepKey, StepWrite] = {}
    answers = []
    for change in changes:
        key = _key(change)
        known = states.get(key, StepStatus.PENDING)
        status = _moved(known, change, writes.get(key))
        if isinstance(status, Rejected):
            harmless = change.status in (known, StepStatus.RUNNING)
            answers.append("" if harmless else status.reason)
            continue
        answers.append("")
        if locked.jobs[change.job_id].ended and status is StepStatus.RUNNING:
            continue
        states[key] = status
        writes[key] = _merged(writes.get(key), change)
    await _write(db, locked, writes)
    return answers


async def note_user_code(db: Db, locked: Locked) -> None:
    """Write down, of jobs that go on, that their user code has begun: what becomes of a lost attempt depends on it."""
    begun = {job_id for job_id in locked.user_code_began if not locked.jobs[job_id].ended}
    locked.user_code_began.clear()
    if begun:
        await jobs.user_code_began(db, begun)


async def end_with(db: Db, locked: Locked, endings: Sequence[Ending]) -> None:
    """Write the ends of jobs, and end their steps with them."""
    settlements = [
        Settlement(
            one.job_id,
            locked.jobs[one.job_id].attempt,
            *_WITH_JOB.get(one.status, (StepStatus.FAILED, StepStatus.SKIPPED)),
            one.error,
            one.reason,
        )
        for one in endings
    ]
    ended = await attempts.end(db, endings, settlements)
    await _compact_cut(db, locked, ended.settled)
    await completions.tell(db, locked, jobs=ended.heard)


async def abandon(db: Db, locked: Locked, lost: Mapping[str, str]) -> None:
    """End the steps of attempts that were lost (job → why): another attempt has steps of its own."""
    settlements = [
        Settlement(job_id, locked.jobs[job_id].attempt, StepStatus.FAILED, StepStatus.SKIPPED, why, Reason.INFRA_LOST)
        for job_id, why in lost.items()
    ]
    await _compact_cut(db, locked, (await attempts.end(db, [], settlements)).settled)


def _key(change: StepWrite) -> StepKey:
    return change.job_id, change.attempt, change.step_index


def _moved(known: StepStatus, change: StepWrite, earlier: StepWrite | None) -> StepStatus | Rejected:
    if change.status is not StepStatus.RUNNING:
        return step_transition(known, _EVENTS[change.status])
    again = known is StepStatus.RUNNING and change.step_attempt > (earlier.step_attempt if earlier else 1)
    return step_transition(known, StepEvent.RETRY if again else StepEvent.START)


def _merged(earlier: StepWrite | None, change: StepWrite) -> StepWrite:
    """Of two states in one batch the later one, with the start that the earlier one told."""
    if earlier is None or change.started_at_ms is not None:
        return change
    return replace(change, started_at_ms=earlier.started_at_ms)


async def _write(db: Db, locked: Locked, writes: Mapping[StepKey, StepWrite]) -> None:
    if not writes:
        return
    began = {
        write.job_id
        for write in writes.values()
        if write.step_index >= 0 or write.status is StepStatus.SUCCESS
        if not locked.jobs[write.job_id].user_code_began
    }
    for job_id in began:
        locked.jobs[job_id] = replace(locked.jobs[job_id], user_code_began=True)
    locked.user_code_began |= began
    ids = await steps.write(db, [writes[key] for key in sorted(writes)])
    locked.wakes.runs |= {write.run_id for write in writes.values()}
    # A log without a chunk is closed by the write itself: see `steps.write`.
    logs = [(key, write) for key, write in writes.items() if write.status in TERMINAL_STEP and write.log_chunks != 0]
    await _compact(db, locked, [_compaction(ids[key], write, chunks=write.log_chunks) for key, write in logs])


async def _compact_cut(db: Db, locked: Locked, settled: Sequence[Settled]) -> None:
    """Logs of steps whose agent did not tell their end."""
    await _compact(db, locked, [_compaction(step.id, step, chunks=None) for step in settled])


def _compaction(step_id: str, step: StepWrite | Settled, *, chunks: int | None) -> Put:
    return Put(
        COMPACT_LOG,
        step_id,
        dedupe_key=f"{COMPACT_LOG}:{step_id}",
        payload={
            "run_id": step.run_id,
            "job_id": step.job_id,
            "attempt": step.attempt,
            "step_index": step.step_index,
            "chunks": chunks,
        },
        delay_s=0.0 if chunks is not None else LATE_CHUNKS_S,
    )


async def _compact(db: Db, locked: Locked, puts: Sequence[Put]) -> None:
    if puts:
        await outbox.put_all(db, puts)
        locked.wakes.outbox.add(COMPACT_LOG)
