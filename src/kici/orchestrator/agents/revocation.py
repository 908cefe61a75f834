"""Sends agents away whose token is not valid any more. Every coordinator watches its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.agents.attention import Hears
from kici.orchestrator.agents.roster import Agent, Roster
from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import notify, sessions, tokens
from kici.orchestrator.store.database import transaction
from kici.wire.close_codes import CloseCode

log = structlog.get_logger(__name__)


class Pass(Struct, frozen=True):
    revoked: int


class WatchRevocations:
    """Woken by the notification of a revocation, and by agents that connect: theirs may have come while they were let
    in. Looks every `interval` for expired tokens."""

    def __init__(
        self,
        pool: Pool[Record],
        roster: Roster,
        listener: Hears,
        notifier: Notifies,
        limits: Limits,
        *,
        instance: str,
        interval: timedelta = timedelta(seconds=5),
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._roster = roster
        self._notifier = notifier
        self._limits = limits
        self._instance = instance
        self._on_pass = on_pass
        self._pace = Pace(interval)
        listener.subscribe(notify.TOKENS, lambda _: self._pace.wake())
        roster.on_connect.append(self._pace.wake)

    async def run(self) -> None:
        async for _ in self._pace:
            try:
                self._on_pass(await self.run_once())
            except (Unavailable, LeaseLost) as error:
                log.info("tokens are looked at later", reason=str(error))

    async def run_once(self) -> Pass:
        agents = [agent for agent in self._roster.all() if agent.token_id]
        if not agents:
            return Pass(0)
        async with transaction(self._pool) as db:
            gone = await tokens.not_valid(db, {agent.token_id for agent in agents})
        revoked = [agent for agent in agents if agent.token_id in gone]
        for agent in revoked:
            await self._send_away(agent)
        return Pass(len(revoked))

    async def _send_away(self, agent: Agent) -> None:
        """The socket first: whatever the database does, this agent is told nothing more."""
        log.warning("agent sent away: its token was revoked or has expired", agent=agent.agent_id)
        if agent.link is not None:
            agent.link.close(CloseCode.AUTH_FAILED, "the agent token is unknown, revoked or expired")
        async with transaction(self._pool) as db:
            await sessions.hold_lease(db, self._instance)
            wakes = await agent_sessions.revoke(db, self._limits, agent.session_id)
        agent.lost = True
        self._roster.remove(agent.session_id)
        if wakes is not None:
            agent_sessions.LOST.labels("revoked").inc()
            wakes.send(self._notifier)
