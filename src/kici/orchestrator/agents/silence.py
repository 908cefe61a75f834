"""Notices agents that have fallen silent, and those that do not answer a dispatch. Every coordinator watches its
own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.agents.contract import OwnLease, Settings
from kici.orchestrator.agents.roster import Agent, Roster
from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import sessions
from kici.orchestrator.store.database import transaction
from kici.wire.close_codes import CloseCode

log = structlog.get_logger(__name__)

ANSWER_MARGIN_S = 2.0
"""The leader re-queues at the ack deadline; the socket is closed a little later."""


class Pass(Struct, frozen=True):
    lost: int
    closed: int


class WatchSilence:
    def __init__(
        self,
        pool: Pool[Record],
        roster: Roster,
        lease: OwnLease,
        notifier: Notifies,
        limits: Limits,
        settings: Settings,
        *,
        instance: str,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._roster = roster
        self._lease = lease
        self._notifier = notifier
        self._limits = limits
        self._settings = settings
        self._instance = instance
        self._on_pass = on_pass

    async def run(self) -> None:
        async for _ in Pace(timedelta(seconds=min(1.0, self._settings.silent_s / 5))):
            self._on_pass(await self.run_once())

    async def run_once(self) -> Pass:
        now = self._roster.clock()
        silent = [
            agent for agent in self._roster.all() if not agent.lost and now - agent.heard_at > self._settings.silent_s
        ]
        lost = 0
        if silent and self._lease.valid():
            for agent in silent:
                try:
                    lost += await self._lose(agent)
                except (Unavailable, LeaseLost) as error:
                    log.info("a silent agent is noted later", agent=agent.agent_id, reason=str(error))
                    break
        return Pass(lost, self._close_hopeless(now))

    async def _lose(self, agent: Agent) -> bool:
        """One transaction. The agent's own clock counts from our last acknowledgement, and so do the deadlines."""
        heard_s = self._roster.clock() - agent.known_at
        agent.lost = True
        try:
            async with transaction(self._pool) as db:
                await sessions.hold_lease(db, self._instance)
                wakes = await agent_sessions.fall_silent(db, self._limits, agent.session_id, heard_s=heard_s)
        except BaseException:
            agent.lost = False
            raise
        if agent.link is None:
            self._roster.remove(agent.session_id)
        if wakes is None:
            return False
        agent_sessions.LOST.labels("silent").inc()
        log.warning("agent is silent", agent=agent.agent_id, session=agent.session_id, silent_s=round(heard_s, 1))
        wakes.send(self._notifier)
        return True

    def _close_hopeless(self, now: float) -> int:
        """Sockets of agents that are silent for long, or that leave a dispatch unanswered although they are not
        silent."""
        closed = 0
        for agent in self._roster.all():
            if agent.link is None:
                continue
            if now - agent.heard_at > 2 * self._settings.silent_s:
                agent.link.close(CloseCode.HEARTBEAT_TIMEOUT, "no heartbeat")
                closed += 1
            elif any(
                not held.answered
                and held.sent_at is not None
                and now - held.sent_at > self._settings.ack_timeout_s + ANSWER_MARGIN_S
                for held in agent.held.values()
            ):
                agent.link.close(CloseCode.ACK_TIMEOUT, "a dispatch was not answered")
                closed += 1
        return closed
