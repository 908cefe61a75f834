"""Tells agents what they are to stop: cancelled jobs, and attempts that are not theirs any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.agents.roster import Agent, Held, Link, Roster
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import jobs, notify, queue, sessions
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.queue import QueueRow
from kici.wire.agent import Cancel
from kici.wire.close_codes import CloseCode

log = structlog.get_logger(__name__)


class Hears(Protocol):
    def subscribe(self, channel: str, callback: Callable[[set[str]], None]) -> None: ...


class Pass(Struct, frozen=True):
    sent: int
    superseded: int


class Attention:
    """Woken by notifications about sessions of this coordinator and by agents that connect; looks every `interval`."""

    def __init__(
        self,
        pool: Pool[Record],
        roster: Roster,
        listener: Hears,
        *,
        interval: timedelta = timedelta(seconds=5),
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._roster = roster
        self._on_pass = on_pass
        self._pace = Pace(interval)
        self._interval = interval.total_seconds()
        self._looked_at_all = float("-inf")
        self._known: set[str] = set()
        """Sessions that were looked at."""
        self._told_of: set[str] = set()
        listener.subscribe(notify.CANCEL, self._told)
        roster.on_connect.append(self._pace.wake)

    def _told(self, session_ids: set[str]) -> None:
        mine = {one for one in session_ids if self._roster.get(one)}
        if not session_ids:
            self._looked_at_all = float("-inf")
        self._told_of |= mine
        if mine or not session_ids:
            self._pace.wake()

    async def run(self) -> None:
        async for _ in self._pace:
            try:
                self._on_pass(await self._look())
            except Unavailable as error:
                log.info("agents are told later what to stop", reason=str(error))

    async def _look(self) -> Pass:
        """At all agents once in an interval, in between at those that are new or were told of: when thousands come back
        together, each of them must not make us look at all."""
        now = self._roster.clock()
        if now - self._looked_at_all >= 0.8 * self._interval:
            self._looked_at_all = now
            return await self.run_once()
        there = {agent.session_id for agent in self._roster.all() if agent.link is not None}
        return await self.run_once((there - self._known) | (there & self._told_of))

    async def run_once(self, only: Collection[str] | None = None) -> Pass:
        """At all agents, or `only` those of these sessions."""
        agents = {
            agent.session_id: agent
            for agent in self._roster.all()
            if agent.link is not None and (only is None or agent.session_id in only)
        }
        self._told_of -= agents.keys()
        if only is None:
            self._known.clear()
        if not agents:
            return Pass(0, 0)
        held = {session_id: dict(agent.held) for session_id, agent in agents.items()}
        async with transaction(self._pool) as db:
            states = await sessions.states(db, agents)
            stops = await jobs.to_stop(db, agents)
            rows = await queue.claims_of(db, agents)
        self._known |= agents.keys()
        superseded = 0
        for session_id, agent in agents.items():
            if agent.link is not None and session_id in states and states[session_id].closed:
                agent.link.close(CloseCode.SUPERSEDED, "a newer socket of this agent took over")
                superseded += 1
        sent = sum(_stop(agents[stop.session_id], stop) for stop in stops)
        sent += sum(self._withdraw(agent, held[session_id], rows) for session_id, agent in agents.items())
        return Pass(sent, superseded)

    def _withdraw(self, agent: Agent, held: Mapping[str, Held], rows: Mapping[str, QueueRow]) -> int:
        """Attempts that the queue has taken from the agent, or that ended without it."""
        sent = 0
        for job_id, one in held.items():
            row = rows.get(job_id)
            if row is not None and (row.attempt, row.session_id) == (one.attempt, agent.session_id):
                continue
            if agent.held.get(job_id) is one and agent.link is not None:
                sent += _send(
                    agent.link, one, Cancel(job_id, one.attempt, "it is not this agent's any more", force=True)
                )
                if not one.answered:
                    self._roster.release(agent.session_id, job_id, one.attempt)
        return sent


def _stop(agent: Agent, stop: jobs.Stop) -> int:
    held = agent.held.setdefault(stop.job_id, Held(stop.attempt, answered=True))
    if agent.link is None or held.attempt != stop.attempt:
        return 0
    return _send(agent.link, held, Cancel(stop.job_id, stop.attempt, stop.reason, force=stop.force))


def _send(link: Link, held: Held, cancel: Cancel) -> int:
    """Once per socket and kind."""
    kind = "force" if cancel.force else "graceful"
    if held.cancel_sent in (kind, "force"):
        return 0
    held.cancel_sent = kind
    link.send(cancel)
    return 1
