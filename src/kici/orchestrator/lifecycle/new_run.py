"""A run that has just been made, in the transaction that makes it."""

from __future__ import annotations

from kici.orchestrator.lifecycle.end import cascade
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import jobs, run_states
from kici.orchestrator.store.database import Db

DEFAULT_LIMITS = Limits()


async def settle_new_run(db: Db, run_id: str, limits: Limits = DEFAULT_LIMITS) -> Wakes:
    """Draw the consequences of jobs that were born ended (failed, or reused): dependants start or are skipped, the run
    ends if all ended."""
    locked = Locked(limits)
    locked.runs = await run_states.lock(db, [run_id])
    locked.jobs = await jobs.lock_ended(db, [run_id])
    await cascade(db, locked, list(locked.jobs))
    return locked.wakes
