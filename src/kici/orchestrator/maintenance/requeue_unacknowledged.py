"""Takes jobs back from agents that have not answered the dispatch: dispatched is not started."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked, lock_free_jobs
from kici.orchestrator.lifecycle.loss import settle
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import lease, outages, queue
from kici.orchestrator.store.queue import Overdue

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=2)
    batch: int = 200
    lease: timedelta = timedelta(seconds=15)
    """Of a coordinator: for so long after an outage nothing is taken back."""


class Pass(Struct, frozen=True):
    found: int
    settled: int


class RequeueUnacknowledged:
    """Leader-only, so that it also covers a coordinator that died after a claim."""

    def __init__(
        self,
        pool: Pool[Record],
        held: lease.Lease,
        notifier: Notifies,
        limits: Limits,
        settings: Settings,
        *,
        instance: str,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._held = held
        self._notifier = notifier
        self._limits = limits
        self._settings = settings
        self._instance = instance
        self._on_pass = on_pass

    async def run(self) -> None:
        """Pass after pass until cancelled. Raises `LeaseLost` when another coordinator leads."""
        async for pace in Pace(self._settings.interval):
            done = await self.run_once()
            if done.settled == self._settings.batch:
                pace.wake()
            self._on_pass(done)

    async def run_once(self) -> Pass:
        async with self._pool.acquire() as db, db.transaction():
            await lease.guard(db, self._held)
            if await outages.just_over(db, self._instance, self._settings.lease):
                return Pass(0, 0)
            overdue = await queue.find_unacknowledged(db, self._settings.batch)
            locked = await lock_free_jobs(db, self._limits, [one.job_id for one in overdue])
            stood = [one for one in overdue if _stands(locked, one)]
            locked.wakes.sessions |= {one.session_id for one in stood if one.session_id}
            await settle(db, locked, {one.job_id: "its agent did not acknowledge the dispatch" for one in stood})
        locked.wakes.send(self._notifier)
        if stood:
            log.warning("took back jobs that were not acknowledged", jobs=[one.job_id for one in stood][:20])
        return Pass(len(overdue), len(stood))


def _stands(locked: Locked, one: Overdue) -> bool:
    row = locked.queue.get(one.job_id)
    return (
        row is not None and (row.attempt, row.session_id) == (one.attempt, one.session_id) and row.accepted_at is None
    )
