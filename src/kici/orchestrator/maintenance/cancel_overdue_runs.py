"""Cancels runs that have taken longer than their workflow's timeout."""

from __future__ import annotations

import structlog
from msgspec import Struct

from kici.engine import timeouts
from kici.orchestrator.errors import Conflict
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.store import deadlines
from kici.orchestrator.store.deadlines import OverdueRun

log = structlog.get_logger(__name__)

BY = "orchestrator:workflow_timeout"
"""Who cancelled the run."""


class Pass(Struct, frozen=True):
    """What one pass did. The rest of `found` had ended meanwhile."""

    found: int
    cancelled: int


class CancelOverdueRuns(Sweeper[Pass]):
    """Leader-only. A run is a transaction: it is locked with all its jobs, so several at once would be out of order."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            found = await deadlines.find_runs(db, self._batch)
        cancelled = [run.run_id for run in found if await self._cancel(run)]
        if cancelled:
            log.warning("cancelled runs past their timeout", runs=cancelled[:20])
        return Pass(len(found), len(cancelled))

    def _is_full(self, done: Pass) -> bool:
        return done.found == self._batch

    async def _cancel(self, run: OverdueRun) -> bool:
        try:
            async with self._transaction() as db:
                done = await cancel_run(
                    db, run.run_id, by=BY, reason=timeouts.of_run(run.timeout_ms), force=False, limits=self._limits
                )
        except Conflict:
            return False
        done.wakes.send(self._notifier)
        return True
