"""Notes that the agents of a dead coordinator are silent; a living one watches its own."""

from __future__ import annotations

import structlog
from msgspec import Struct

from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.store import sessions
from kici.orchestrator.store.sessions import Silent

log = structlog.get_logger(__name__)


class Pass(Struct, frozen=True):
    lost: int
    closed: int


class LoseSessions(Sweeper[Pass]):
    """Leader-only. Each session is a transaction of its own."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            if await self._is_outage_just_over(db):
                return Pass(0, 0)
            silent = await sessions.find_silent(db, self._batch)
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
        async with self._transaction() as db:
            if not await sessions.still_silent(db, session):
                return False
            wakes = await agent_sessions.fall_silent(db, self._limits, session.id, heard_s=session.heard_s)
        if wakes is not None:
            agent_sessions.LOST.labels("coordinator_gone").inc()
            wakes.send(self._notifier)
        return wakes is not None
