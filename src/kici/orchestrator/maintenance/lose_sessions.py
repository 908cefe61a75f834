"""Notes that the agents of a dead coordinator are silent; a living one watches its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import lease, outages, sessions
from kici.orchestrator.store.sessions import Silent

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=2)
    batch: int = 200
    lease: timedelta = timedelta(seconds=15)
    """Of a coordinator: for so long after an outage nobody is called silent."""


class Pass(Struct, frozen=True):
    lost: int
    closed: int


class LoseSessions:
    """Leader-only. Each session is a transaction of its own."""

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
        async for _ in Pace(self._settings.interval):
            self._on_pass(await self.run_once())

    async def run_once(self) -> Pass:
        async with self._pool.acquire() as db, db.transaction():
            await lease.guard(db, self._held)
            if await outages.just_over(db, self._instance, self._settings.lease):
                return Pass(0, 0)
            silent = await sessions.find_silent(db, self._settings.batch)
            closed = await sessions.close_settled(db, lost_for_s=self._limits.recovery_s)
        lost = [session for session in silent if await self._lose(session)]
        if lost:
            log.warning(
                "a coordinator is gone: its agents are silent until they come back",
                coordinators=sorted({session.coordinator for session in lost}),
                agents=[session.agent_id for session in lost][:20],
            )
        return Pass(len(lost), closed)

    async def _lose(self, session: Silent) -> bool:
        async with self._pool.acquire() as db, db.transaction():
            await lease.guard(db, self._held)
            if not await sessions.still_silent(db, session):
                return False
            wakes = await agent_sessions.fall_silent(db, self._limits, session.id, heard_s=session.heard_s)
        if wakes is not None:
            agent_sessions.LOST.labels("coordinator_gone").inc()
            wakes.send(self._notifier)
        return wakes is not None
