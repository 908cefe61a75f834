"""Ends jobs that nothing has picked up in time, so that nobody waits for a run that cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.lifecycle.expiry import expire
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_free_jobs
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import lease, queue

log = structlog.get_logger(__name__)

NEVER_SENT = "Queue timeout expired (job was never dispatched to an agent)"


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=30)
    batch: int = 500


class Pass(Struct, frozen=True):
    """What one pass did. The rest of `found` is left to the next pass, or was claimed meanwhile."""

    found: int
    ended: int


class EndStaleWaits:
    """Leader-only. A pass is one transaction: what it ends it ends whole, or leaves to the next leader."""

    def __init__(
        self,
        pool: Pool[Record],
        held: lease.Lease,
        notifier: Notifies,
        limits: Limits,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._held = held
        self._notifier = notifier
        self._limits = limits
        self._settings = settings
        self._on_pass = on_pass

    async def run(self) -> None:
        """Pass after pass until cancelled. Raises `LeaseLost` when another coordinator leads."""
        async for pace in Pace(self._settings.interval):
            done = await self.run_once()
            if done.ended == self._settings.batch:
                pace.wake()
            self._on_pass(done)

    async def run_once(self) -> Pass:
        async with self._pool.acquire() as db, db.transaction():
            await lease.guard(db, self._held)
            stale = await queue.find_expired(db, self._settings.batch)
            locked = await lock_free_jobs(db, self._limits, [wait.job_id for wait in stale])
            ended = await expire(
                db, locked, {wait.job_id: wait.last_provisioning_error or NEVER_SENT for wait in stale}
            )
        locked.wakes.send(self._notifier)
        if ended:
            log.info("ended jobs that waited too long", ended=ended)
        return Pass(found=len(stale), ended=ended)
