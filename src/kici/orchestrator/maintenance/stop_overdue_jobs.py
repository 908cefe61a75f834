"""Stops jobs that run past their timeout because their agent, though it is there, does not stop them."""

from __future__ import annotations

import structlog
from msgspec import Struct

from kici.orchestrator.lifecycle.deadlines import time_out
from kici.orchestrator.lifecycle.locked import lock_free_jobs
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.store import deadlines

log = structlog.get_logger(__name__)


class Pass(Struct, frozen=True):
    """What one pass did. The rest of `found` is left to the next pass, or has ended meanwhile."""

    found: int
    asked: int


class StopOverdueJobs(Sweeper[Pass]):
    """Leader-only. It asks: `SettleOverdue` ends what does not stop then."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            if await self._is_outage_just_over(db):
                return Pass(0, 0)  # its agent may have ended it and could not say so
            found = await deadlines.find_jobs(db, self._batch)
            locked = await lock_free_jobs(db, self._limits, found)
            asked = await time_out(db, locked, locked.jobs)
        locked.wakes.send(self._notifier)
        if asked:
            log.warning("agents were asked to stop jobs past their timeout", jobs=asked)
        return Pass(len(found), asked)

    def _is_full(self, done: Pass) -> bool:
        return done.asked == self._batch
