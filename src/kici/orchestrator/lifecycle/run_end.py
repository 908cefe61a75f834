"""A run ends when all its jobs have."""

from __future__ import annotations

from collections.abc import Collection

from kici.engine.lifecycle import Rejected, RunEvent, RunStatus, failure_reason
from kici.engine.lifecycle import roll_up as roll_up_of
from kici.orchestrator.lifecycle import completions
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import run_states
from kici.orchestrator.store.database import Db

_EVENTS = {
    RunStatus.SUCCESS: RunEvent.SUCCEED,
    RunStatus.FAILED: RunEvent.FAIL,
    RunStatus.CANCELLED: RunEvent.CANCEL,
}


async def roll_up(db: Db, locked: Locked, run_ids: Collection[str]) -> set[str]:
    """End those of these locked runs of which no job is open any more. Returns them."""
    if not run_ids:
        return set()
    endings = []
    for run_id, jobs in (await run_states.endings_of_jobs(db, run_ids)).items():
        ending = roll_up_of(jobs.values())
        if ending is None:
            continue
        status = locked.move_run(run_id, _EVENTS[ending])
        if not isinstance(status, Rejected):
            endings.append(run_states.Ending(run_id, status, failure_reason(jobs)))
    if endings and (heard := await run_states.end(db, endings)):
        await completions.tell(db, locked, runs=heard)
    return {ending.run_id for ending in endings}
