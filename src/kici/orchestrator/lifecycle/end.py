"""The end of jobs, and all that follows: steps, queue row, dependants, run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.lifecycle import JobEvent, Rejected
from kici.orchestrator.lifecycle import needs, run_end, steps
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import jobs, queue
from kici.orchestrator.store.database import Db


class End(Struct, frozen=True):
    job_id: str
    event: JobEvent
    error: str = ""
    outputs: dict[str, Any] | None = None
    init_failure: dict[str, Any] | None = None
    reported: bool = False
    """By the agent that ran it."""


async def end(db: Db, locked: Locked, ends: Sequence[End]) -> dict[str, str]:
    """End jobs that are locked with their runs and queue rows. Returns job → why not, of those that the engine
    refuses."""
    refused = await _write(db, locked, ends)
    await cascade(db, locked, {one.job_id for one in ends} - refused.keys())
    return refused


async def cascade(db: Db, locked: Locked, ended: Collection[str]) -> None:
    """What follows from the ends of these jobs, which are written: dependants start or are skipped, runs end."""
    runs = {locked.jobs[job_id].run_id for job_id in ended}
    while ended:
        skipped = await needs.release(db, locked, ended)
        skips = [End(job_id, JobEvent.SKIP, error=reason) for job_id, reason in skipped.items()]
        ended = skipped.keys() - (await _write(db, locked, skips)).keys()
    await run_end.roll_up(db, locked, runs)


async def _write(db: Db, locked: Locked, ends: Sequence[End]) -> dict[str, str]:
    refused: dict[str, str] = {}
    written: list[jobs.Ending] = []
    for one in ends:
        status = locked.move_job(one.job_id, one.event)
        if isinstance(status, Rejected):
            refused[one.job_id] = status.reason
            continue
        if not one.reported:
            locked.jobs[one.job_id] = replace(locked.jobs[one.job_id], session_id=None)
        written.append(
            jobs.Ending(
                one.job_id,
                status,
                one.error,
                one.outputs,
                one.init_failure,
                reported=one.reported,
                user_code_began=locked.jobs[one.job_id].user_code_began,
            )
        )
    if written:
        ids = [one.job_id for one in written]
        await jobs.end(db, written)
        await queue.delete(db, ids)
        for job_id in ids:
            locked.queue.pop(job_id, None)
        await steps.settle(
            db, locked, [locked.jobs[job_id] for job_id in ids], error={one.job_id: one.error for one in written}
        )
    return refused
