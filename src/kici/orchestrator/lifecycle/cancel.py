"""Cancelling a run: what has not begun ends at once, what runs is asked to stop."""

from __future__ import annotations

from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_RUN, RunStatus
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.lifecycle.end import end
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_runs
from kici.orchestrator.lifecycle.stop import stop_run
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store.database import Db

DEFAULT_LIMITS = Limits()


class CancelResult(Struct, frozen=True):
    status: RunStatus
    """`cancelling` while some agent has not yet answered."""
    cancelled_jobs: int
    """Those that ended at once and those that were asked to stop."""
    wakes: Wakes
    """To be sent after the commit."""


async def cancel_run(
    db: Db, run_id: str, *, by: str, reason: str, force: bool, limits: Limits = DEFAULT_LIMITS
) -> CancelResult:
    """In the caller's transaction. Raises `NotFound`, or `Conflict` if the run has ended.

    With `force`, agents kill without the grace period, and a job whose agent is silent ends at once. A job that is
    being cancelled may be forced. A run that waits for its concurrency group leaves the line.
    """
    locked = await lock_runs(db, limits, [run_id])
    run = locked.runs.get(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    if run.status in TERMINAL_RUN:
        raise Conflict(f"run {run_id} has already ended as {run.status}")
    asked = len(locked.open_jobs(run_id))
    ends = await stop_run(db, locked, run_id, by=by, reason=reason, force=force)
    refused = await end(db, locked, ends)
    return CancelResult(locked.runs[run_id].status, asked - len(refused), locked.wakes)
