"""The end of jobs, and all that follows: steps, queue row, dependants, fan-out, concurrency groups, run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from kici.engine import failure
from kici.engine.lifecycle import Rejected
from kici.orchestrator.lifecycle import concurrency, expansion, fan_out, needs, run_end, steps
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.start import enqueue, start
from kici.orchestrator.store import jobs
from kici.orchestrator.store.concurrency import Group
from kici.orchestrator.store.database import Db

__all__ = ["End", "cascade", "end"]


async def end(db: Db, locked: Locked, ends: Sequence[End]) -> dict[str, str]:
    """End jobs that are locked with their runs and queue rows. Returns job → why not, of those that the engine
    refuses."""
    refused = await _write(db, locked, ends)
    await cascade(db, locked, {one.job_id for one in ends} - refused.keys())
    return refused


async def cascade(
    db: Db,
    locked: Locked,
    ended: Collection[str] = (),
    *,
    ready: Collection[str] = (),
    ends: Sequence[End] = (),
    freed: Collection[Group] = (),
) -> None:
    """All that follows from ends that are written and such that are still to be, from jobs whose needs are met, and
    from slots that are free. A job is to be named as ready once: it may join a group.

    Whatever starts or ends thereby has consequences of its own; each turn ends a job, starts one, or is the last.
    """
    ready, ends, freed = list(ready), list(ends), set(freed)
    runs: set[str] = set()
    while ended or ready or ends or freed:
        if ended:
            runs |= {locked.jobs[job_id].run_id for job_id in ended}
            released, skipped = await needs.release(db, locked, ended)
            released, kept = await expansion.expand(db, locked, released)
            opened, halted = await fan_out.after(db, locked, ended)
            freed |= await concurrency.release(db, locked, ended)
            ready += [*released, *opened]
            ends += [*skipped, *kept, *halted]
        ends += await start(db, locked, ready)
        ready = []
        refused = await _write(db, locked, ends)
        ended = {one.job_id for one in ends} - refused.keys()
        ends = []
        if ended:
            continue
        freed |= await concurrency.release_runs(db, locked, await run_end.roll_up(db, locked, runs))
        runs = set()
        granted = await concurrency.hand_over(db, locked, freed)
        freed = set()
        await enqueue(db, locked, granted.jobs)
        ready = [job_id for run_id in granted.runs for job_id in locked.startable(run_id)]


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
                one.facts.reason or failure.of_ended_job(status, timed_out=bool(locked.jobs[one.job_id].timed_out)),
                one.facts.exit_code,
                one.facts.signal,
                one.facts.peak_memory_bytes,
                one.outputs,
                one.init_failure,
                reported=one.reported,
                user_code_began=locked.jobs[one.job_id].user_code_began,
            )
        )
    if written:
        await steps.end_with(db, locked, written)
        for ending in written:
            locked.queue.pop(ending.job_id, None)
    return refused
