"""Who may come in: what is asked of a hello before a session is opened."""

from __future__ import annotations

import uuid

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

import kici
from kici.engine import labels
from kici.orchestrator.agents.contract import OwnLease, Settings, Tokens
from kici.orchestrator.agents.roster import Agent, Roster, adopt
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.frames import SessionRef
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.store import sessions, storable
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.sessions import NewSession
from kici.wire import version
from kici.wire.agent import Hello, Welcome
from kici.wire.close_codes import CloseCode

log = structlog.get_logger(__name__)

WARN_SKEW_MS = 2_000
MAX_SLOTS = 1_024
MAX_NAME = 200


class TurnedAway(Struct, frozen=True):
    code: CloseCode
    reason: str


class Opened(Struct, frozen=True):
    agent: Agent
    welcome: Welcome


class Door:
    """Raises `Unavailable` where the database is away, and `LeaseLost` while this coordinator has no lease."""

    def __init__(
        self,
        pool: Pool[Record],
        tokens: Tokens,
        roster: Roster,
        lease: OwnLease,
        notifier: Notifies,
        limits: Limits,
        settings: Settings,
        *,
        instance: str,
    ) -> None:
        self._pool = pool
        self._tokens = tokens
        self._roster = roster
        self._lease = lease
        self._notifier = notifier
        self._limits = limits
        self._settings = settings
        self._instance = instance

    async def admit(self, hello: Hello) -> Opened | TurnedAway:
        protocol = version.agree(hello.protocol_min, hello.protocol_max)
        if protocol is None:
            return TurnedAway(
                CloseCode.PROTOCOL_VERSION,
                f"agent speaks protocol {hello.protocol_min} to {hello.protocol_max}, this orchestrator"
                f" {version.PROTOCOL_MIN} to {version.PROTOCOL_MAX}: upgrade the older of the two",
            )
        if not 0 < len(hello.agent_id) <= MAX_NAME or not 0 < hello.slots <= MAX_SLOTS:
            return TurnedAway(CloseCode.REFUSED, f"an agent has a name and 1 to {MAX_SLOTS} slots")
        token = await self._tokens.agent(hello.token)
        if token is None:
            return TurnedAway(CloseCode.AUTH_FAILED, "the agent token is unknown, revoked or expired")
        foreign = labels.foreign(hello.labels, token.labels)
        if foreign:
            return TurnedAway(CloseCode.REFUSED, f"the agent's token does not grant {', '.join(foreign)}")
        new = NewSession(
            id=str(uuid.uuid4()),
            agent_id=hello.agent_id,
            boot_id=hello.boot_id,
            token_id=token.id,
            coordinator=self._instance,
            protocol=protocol,
            version=hello.version,
            labels=hello.labels,
            slots=hello.slots,
            facts=storable.json(hello.facts),
            draining=hello.draining,
        )
        since, now = self._lease.since, self._roster.clock()
        async with transaction(self._pool) as db:
            at = await sessions.hold_lease(db, self._instance)
            skew_ms = hello.clock_ms - int(at.timestamp() * 1000)
            adopted = await agent_sessions.arrive(
                db, self._limits, new, hello.attempts, is_dropped=self._roster.is_dropped
            )
        if isinstance(adopted, agent_sessions.Foreign):
            return TurnedAway(
                CloseCode.REFUSED, f"agent id {hello.agent_id} is registered with another token: choose another id"
            )
        agent = Agent(
            SessionRef(new.id, new.agent_id, skew_ms),
            labels=frozenset(new.labels),
            slots=new.slots,
            draining=new.draining,
            lease_since=since,
            now=now,
            token_id=token.id,
        )
        adopt(agent, adopted.kept.items())
        adopted.wakes.send(self._notifier)
        self._tell(hello, agent, len(adopted.forget))
        return Opened(
            agent,
            Welcome(
                session_id=new.id,
                protocol=protocol,
                version=kici.__version__,
                heartbeat_s=self._settings.heartbeat_s,
                silent_s=self._settings.silent_s,
                recovery_s=self._settings.recovery_s,
                forget=adopted.forget,
            ),
        )

    def _tell(self, hello: Hello, agent: Agent, forgotten: int) -> None:
        skew_ms = agent.ref.skew_ms
        log.info(
            "agent connected", agent=agent.agent_id, session=agent.session_id, kept=len(agent.held), forgotten=forgotten
        )
        if abs(skew_ms) > WARN_SKEW_MS:
            log.warning(
                "the agent's clock is wrong: its times are corrected, but set it right (NTP)",
                agent=hello.agent_id,
                ahead_s=skew_ms / 1000,
            )
