"""Takes jobs back from agents that have not answered the dispatch: dispatched is not started."""

from __future__ import annotations

import structlog
from msgspec import Struct

from kici.orchestrator.lifecycle.locked import Locked, lock_free_jobs
from kici.orchestrator.lifecycle.loss import settle
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.store import queue
from kici.orchestrator.store.queue import Overdue

log = structlog.get_logger(__name__)


class Pass(Struct, frozen=True):
    found: int
    settled: int


class RequeueUnacknowledged(Sweeper[Pass]):
    """Leader-only, so that it also covers a coordinator that died after a claim."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            if await self._is_outage_just_over(db):
                return Pass(0, 0)
            overdue = await queue.find_unacknowledged(db, self._batch)
            locked = await lock_free_jobs(db, self._limits, [one.job_id for one in overdue])
            stood = [one for one in overdue if _stands(locked, one)]
            locked.wakes.sessions |= {one.session_id for one in stood if one.session_id}
            await settle(db, locked, {one.job_id: "its agent did not acknowledge the dispatch" for one in stood})
        locked.wakes.send(self._notifier)
        if stood:
            log.warning("took back jobs that were not acknowledged", jobs=[one.job_id for one in stood][:20])
        return Pass(len(overdue), len(stood))

    def _is_full(self, done: Pass) -> bool:
        return done.settled == self._batch


def _stands(locked: Locked, one: Overdue) -> bool:
    row = locked.queue.get(one.job_id)
    return (
        row is not None and (row.attempt, row.session_id) == (one.attempt, one.session_id) and row.accepted_at is None
    )
