"""Ends jobs that nothing has picked up in time, so that nobody waits for a run that cannot go on."""

from __future__ import annotations

from datetime import timedelta

import structlog
from msgspec import Struct

from kici.orchestrator.lifecycle.expiry import expire
from kici.orchestrator.lifecycle.locked import lock_free_jobs
from kici.orchestrator.maintenance.sweeper import Settings, Sweeper
from kici.orchestrator.store import queue

log = structlog.get_logger(__name__)

SETTINGS = Settings(interval=timedelta(seconds=30), batch=500)

NEVER_SENT = "Queue timeout expired (job was never dispatched to an agent)"


class Pass(Struct, frozen=True):
    """What one pass did. The rest of `found` is left to the next pass, or was claimed meanwhile."""

    found: int
    ended: int


class EndStaleWaits(Sweeper[Pass]):
    """Leader-only. A pass is one transaction: what it ends it ends whole, or leaves to the next leader."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            stale = await queue.find_expired(db, self._batch)
            locked = await lock_free_jobs(db, self._limits, [wait.job_id for wait in stale])
            ended = await expire(
                db, locked, {wait.job_id: wait.last_provisioning_error or NEVER_SENT for wait in stale}
            )
        locked.wakes.send(self._notifier)
        if ended:
            log.info("ended jobs that waited too long", ended=ended)
        return Pass(found=len(stale), ended=ended)

    def _is_full(self, done: Pass) -> bool:
        return done.ended == self._batch
