"""The part of a coordinator that has agents: real store, sockets, dispatch and sweepers, with short times."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from asyncpg import Pool, Record

from kici.orchestrator import http
from kici.orchestrator.agents import socket as agent_socket
from kici.orchestrator.agents.attention import Attention
from kici.orchestrator.agents.contract import Settings as AgentSettings
from kici.orchestrator.agents.conversation import Parts
from kici.orchestrator.agents.hello import Door
from kici.orchestrator.agents.revocation import WatchRevocations
from kici.orchestrator.agents.roster import Roster
from kici.orchestrator.agents.silence import WatchSilence
from kici.orchestrator.agents.socket import AgentSockets
from kici.orchestrator.api import job_context
from kici.orchestrator.bridges import AgentTokens
from kici.orchestrator.cluster.coordinator_lease import CoordinatorLease
from kici.orchestrator.cluster.leader import Leader
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.dispatch.dispatcher import Dispatcher
from kici.orchestrator.dispatch.dispatcher import Settings as DispatchSettings
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import digest
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.maintenance import sweeper
from kici.orchestrator.maintenance.cancel_overdue_runs import CancelOverdueRuns
from kici.orchestrator.maintenance.end_stale_waits import EndStaleWaits
from kici.orchestrator.maintenance.lose_sessions import LoseSessions
from kici.orchestrator.maintenance.repair_concurrency import RepairConcurrency
from kici.orchestrator.maintenance.requeue_unacknowledged import RequeueUnacknowledged
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.maintenance.stop_overdue_jobs import StopOverdueJobs
from kici.orchestrator.secrets.job_outputs import SecretOutputs
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.services import Service, Stage, run_stages
from kici.orchestrator.store import lease, sessions, tokens
from kici.orchestrator.store.database import create_pool
from kici.orchestrator.store.lease import Lease
from kici.orchestrator.store.notify import Listener, Notifier
from tests.support.fake_agent import FakeAgent

TTL = timedelta(seconds=15)


class Coordinator:
    """What a test takes hold of. `url` is where agents dial in."""

    def __init__(
        self,
        pool: Pool[Record],
        database_url: str,
        limits: Limits,
        agent_settings: AgentSettings,
        ttl: timedelta = TTL,
        interval: timedelta = DispatchSettings().interval,
        log_pool: Pool[Record] | None = None,
    ) -> None:
        self.instance = f"coordinator-{uuid.uuid4().hex[:6]}"
        self.pool = pool
        self.limits = limits
        self.url = ""
        self.http_url = ""
        self.notifier = Notifier(pool)
        self.listener = Listener(database_url)
        self.lease = CoordinatorLease(pool, self.instance, ttl, version="test")
        self.roster = Roster()
        self.statuses = StatusWriter(
            pool, self.notifier, limits, hold=lambda db: sessions.hold_lease(db, self.instance)
        )
        self.logs = LogWriter(log_pool or pool, self.notifier)
        self.access = Access(pool)
        self.login_error: Exception | None = None
        """Raised when a job's credentials are asked for."""
        self.parts = Parts(
            pool,
            self.roster,
            self.lease,
            self.statuses,
            self.logs,
            self.notifier,
            limits,
            instance=self.instance,
        )
        self.sockets = AgentSockets(
            Door(
                pool,
                AgentTokens(self.access),
                self.roster,
                self.lease,
                self.notifier,
                limits,
                agent_settings,
                instance=self.instance,
            ),
            self.parts,
            agent_settings,
        )
        self.attention = Attention(pool, self.roster, self.listener, interval=interval)
        self.silence = WatchSilence(
            pool, self.roster, self.lease, self.notifier, limits, agent_settings, instance=self.instance
        )
        self.dispatcher = Dispatcher(
            pool,
            self.roster,
            self._login,
            self.listener,
            self.notifier,
            limits,
            Place("http://kici.test"),
            DispatchSettings(interval=interval),
            instance=self.instance,
        )
        self.revocation = WatchRevocations(
            pool, self.roster, self.listener, self.notifier, limits, instance=self.instance, interval=interval
        )
        self.leader = Leader(pool, "maintenance", self.instance, self._led, ttl=ttl)
        self._ttl = ttl

    def _led(self, held: Lease) -> list[Service]:
        """The sweepers, at a quick pace."""
        quick = sweeper.Settings(interval=timedelta(seconds=0.1), lease=self._ttl)
        parts = (self.pool, held, self.notifier, self.limits, quick)
        sweepers = (
            *(EndStaleWaits, LoseSessions, RequeueUnacknowledged, SettleOverdue),
            *(CancelOverdueRuns, StopOverdueJobs, RepairConcurrency),
        )
        return [sweeping(*parts, instance=self.instance) for sweeping in sweepers]

    async def _login(self, routing_key: str, clone_url: str) -> Login:
        if self.login_error is not None:
            raise self.login_error
        return Login()

    async def agent_token(self, labels: list[str] | None = None) -> str:
        token = f"kat_{uuid.uuid4().hex}{uuid.uuid4().hex}"
        async with self.pool.acquire() as db:
            await tokens.create_agent(db, digest(token), prefix=token[:12], labels=labels, created_by="test")
        return token

    async def agent(self, agent_id: str = "agent-1", *, slots: int = 1, labels: tuple[str, ...] = ()) -> FakeAgent:
        """Not yet connected."""
        token = await self.agent_token()
        return FakeAgent(self.url, token, agent_id, labels=("kici:os:linux", *labels), slots=slots)

    async def leads(self) -> Lease:
        """The lease of the leader-only services, held by this coordinator, and the time after its start over."""
        await self.pool.execute(
            "update coordinators set lease_since = now() - interval '1 hour' where instance = $1", self.instance
        )
        await self.lease.run_once()
        async with self.pool.acquire() as db:
            held = await lease.acquire(db, "maintenance", self.instance, timedelta(minutes=5))
        assert held
        return held


@asynccontextmanager
async def running(
    database_url: str,
    *,
    limits: Limits | None = None,
    settings: AgentSettings | None = None,
    dispatching: bool = True,
    leading: bool = False,
    ttl: timedelta = TTL,
    interval: timedelta = DispatchSettings().interval,
    hearing: bool = True,
    pool_size: int = 10,
    more: Callable[[Coordinator], list[Any]] = lambda one: [],
) -> AsyncIterator[Coordinator]:
    """`interval` is of what looks around although nobody has told it to; without `hearing` nobody is told anything.
    `more`: routes beside those of agents."""
    pool, log_pool = await create_pool(database_url, pool_size), await create_pool(database_url, 1)
    one = Coordinator(pool, database_url, limits or Limits(), settings or AgentSettings(), ttl, interval, log_pool)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        outputs = SecretOutputs(KeyRing({1: bytes(32)}))
        routes = [
            *agent_socket.routes(one.sockets),
            *job_context.routes(pool, one.access, Place("http://kici.test"), outputs),
            *more(one),
        ]
        server = http.HttpServer(http.application(routes), listening)
        await one.lease.run_once()
        told: list[Service] = [one.notifier, one.listener] if hearing else []
        stages = [
            Stage("coordination", [one.lease, *told]),
            Stage("writers", [one.statuses, one.logs]),
            Stage(
                "work",
                [
                    one.attention,
                    one.revocation,
                    one.silence,
                    *([one.dispatcher] if dispatching else []),
                    *([one.leader] if leading else []),
                ],
            ),
            Stage("front", [server, one.sockets]),
        ]
        life = asyncio.create_task(run_stages(stages))
        try:
            async with asyncio.timeout(20):
                await server.listening.wait()
            one.http_url = http.address(listening)
            one.url = one.http_url.replace("http", "ws", 1) + "/ws"
            yield one
        finally:
            life.cancel()
            async with asyncio.timeout(20):
                await asyncio.wait([life])
            await one.lease.leave()
            pool.terminate()
            log_pool.terminate()
