"""The agents whose sockets this coordinator has, or had a moment ago: what they may run and what they hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from kici.orchestrator.lifecycle.frames import SessionRef
from kici.wire.agent import Cancel, Dispatch
from kici.wire.close_codes import CloseCode

REST_S = 2.0
"""An agent that has rejected a job is offered nothing for so long."""


class Link(Protocol):
    """The way out to the agent. Nothing blocks: what cannot be sent is lost with the socket, and repeated after it."""

    def send(self, body: Dispatch | Cancel) -> None: ...

    def send_encoded(self, frame: bytes) -> None:
        """A frame as it goes over the wire."""

    def close(self, code: CloseCode, reason: str) -> None: ...


class Held(Struct):
    """One attempt that takes up a slot of the agent."""

    attempt: int
    sent_at: float | None = None
    """When it was sent; None: the agent has listed it."""
    answered: bool = False
    """Accepted or rejected, whether or not that is committed."""
    cancel_sent: str = ""
    """Which kind of cancellation this socket has been sent."""


class Agent:
    """Memory of one session. Times are of the roster's monotonic clock."""

    def __init__(
        self,
        ref: SessionRef,
        *,
        labels: frozenset[str],
        slots: int,
        draining: bool,
        lease_since: object,
        now: float,
        token_id: str = "",
    ) -> None:
        self.ref = ref
        self.token_id = token_id
        self.labels = labels
        self.slots = slots
        self.draining = draining
        self.not_taking = ""
        """Why it takes no job for now, as it says itself."""
        self.held: dict[str, Held] = {}
        self.link: Link | None = None
        self.heard_at = now
        """When its last frame came."""
        self.known_at = now
        """When we last sent it an acknowledgement: it does not believe us gone before that."""
        self.rests_until = now
        self.lost = False
        self.lease_since = lease_since
        """Of the lease under which the session was last seen to be open."""

    @property
    def session_id(self) -> str:
        return self.ref.id

    @property
    def agent_id(self) -> str:
        return self.ref.agent_id

    @property
    def free(self) -> int:
        return max(self.slots - len(self.held), 0)


class Roster:
    """`on_free` is called when a slot may have become free, each of `on_connect` when an agent can be talked to."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.on_free: Callable[[], None] = lambda: None
        self.on_connect: list[Callable[[], None]] = []
        self._agents: dict[str, Agent] = {}
        self._newest: dict[str, Agent] = {}
        """By the agent's name: it has one session here at most."""

    def add(self, agent: Agent) -> list[Agent]:
        """A session has been opened. Returns the older ones of the same agent, which it supersedes."""
        newest = self._newest.get(agent.agent_id)
        older = [newest] if newest is not None and newest.session_id in self._agents else []
        for one in older:
            del self._agents[one.session_id]
        self._agents[agent.session_id] = self._newest[agent.agent_id] = agent
        return older

    def connect(self, agent: Agent, link: Link) -> None:
        agent.link = link
        for wake in self.on_connect:
            wake()
        self.on_free()

    def remove(self, session_id: str) -> None:
        agent = self._agents.pop(session_id, None)
        if agent is not None and self._newest.get(agent.agent_id) is agent:
            del self._newest[agent.agent_id]

    def get(self, session_id: str) -> Agent | None:
        return self._agents.get(session_id)

    def all(self) -> list[Agent]:
        return list(self._agents.values())

    def is_dropped(self, session_id: str) -> bool:
        """Its socket was ours and is gone."""
        agent = self._agents.get(session_id)
        return agent is not None and agent.link is None

    # ── what dispatch asks ────────────────────────────────────────────────────────────────────────────────────────────

    def idle(self) -> list[Agent]:
        """Agents that may be sent a job now."""
        now = self.clock()
        return [
            agent
            for agent in self._agents.values()
            if agent.link is not None
            and agent.free
            and not agent.draining
            and not agent.not_taking
            and not agent.lost
            and agent.rests_until <= now
        ]

    def offered(self) -> list[frozenset[str]]:
        """The labels of each agent that takes jobs, idle or not."""
        return [
            agent.labels
            for agent in self._agents.values()
            if agent.link is not None and not agent.draining and not agent.lost
        ]

    def hold(self, session_id: str, job_id: str, attempt: int) -> bool:
        """A claimed job takes up a slot from now on. False: the agent is gone."""
        agent = self._agents.get(session_id)
        if agent is None or agent.link is None:
            return False
        agent.held[job_id] = Held(attempt)
        return True

    def send(self, session_id: str, job_id: str, attempt: int, dispatch: bytes) -> bool:
        """The encoded frame of a dispatch. False: the agent is gone."""
        agent = self._agents.get(session_id)
        if agent is None or agent.link is None:
            return False
        held = agent.held.setdefault(job_id, Held(attempt))
        held.sent_at = self.clock()
        agent.link.send_encoded(dispatch)
        return True

    def release(self, session_id: str, job_id: str, attempt: int) -> None:
        """The attempt takes up no slot any more."""
        agent = self._agents.get(session_id)
        if agent is not None and job_id in agent.held and agent.held[job_id].attempt == attempt:
            del agent.held[job_id]
            self.on_free()

    def rest(self, agent: Agent) -> None:
        agent.rests_until = self.clock() + REST_S
        asyncio.get_running_loop().call_later(REST_S, self.on_free)


def adopt(agent: Agent, kept: Iterable[tuple[str, int]]) -> None:
    """Attempts that the agent brought with it."""
    agent.held = {job_id: Held(attempt, answered=True) for job_id, attempt in kept}
