"""Runs that have just been made, in the transaction that makes them."""

from __future__ import annotations

from collections.abc import Sequence

from kici.engine.lifecycle import TERMINAL_RUN
from kici.orchestrator.lifecycle import completions
from kici.orchestrator.lifecycle.concurrency import join_runs
from kici.orchestrator.lifecycle.end import cascade
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_runs
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store.database import Db

DEFAULT_LIMITS = Limits()


async def settle_new_runs(db: Db, run_ids: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> Wakes:
    """Start what may start, and draw the consequences of jobs that were born ended (failed, or reused).

    All runs that a transaction makes are settled together, in the order in which they are to join their concurrency
    groups: the groups' scopes come first in the lock order. The wake-ups are to be sent after the commit.
    """
    if not run_ids:
        return Wakes()
    locked = await lock_runs(db, limits, run_ids, ended_jobs=True)
    locked.wakes.runs |= set(run_ids)
    ended = {job_id for job_id, job in locked.jobs.items() if job.ended}
    born = [run_id for run_id in run_ids if (run := locked.runs.get(run_id)) and run.status in TERMINAL_RUN]
    await completions.tell(db, locked, runs=born, jobs=ended)
    ready = [job_id for run_id in run_ids for job_id in locked.startable(run_id)]
    await cascade(db, locked, ended, ready=ready, ends=await join_runs(db, locked, run_ids))
    return locked.wakes
