"""The processes: PostgreSQL, two coordinators, agents."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec

from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.chaos.agent import Orders
from tests.support.processes import Coordinator, Process, environment

TIMES = {
    "KICI_HEARTBEAT_S": "0.5",
    "KICI_SILENT_S": "1.5",
    "KICI_RECOVERY_S": "4",
    "KICI_REPORT_WINDOW_S": "60",
    "KICI_COORDINATOR_LEASE_S": "2",
    "KICI_DISPATCH_ACK_TIMEOUT_MS": "2000",
    "KICI_POLL_S": "1",
    "KICI_MAX_ATTEMPTS": "1000",
}
"""As short as they can be told: an outage of a few seconds is longer than all of them."""


class Cluster:
    """`running` makes one. `http` speaks to the coordinators as the administrator."""

    def __init__(self, base: Path, postgres: EmbeddedPostgres, coordinators: list[Coordinator]) -> None:
        self.base = base
        self.postgres = postgres
        self.coordinators = coordinators
        self.agents: list[Process] = []
        self.journals: dict[str, Path] = {}
        self.http = httpx.AsyncClient(timeout=5, trust_env=False)

    async def start_agents(self, count: int, slots: int, work_s: tuple[float, float]) -> None:
        answer = await self.http.post(f"{self.coordinators[0].url}/api/v1/agent-tokens", json={})
        answer.raise_for_status()
        token = answer.json()["token"]
        for number in range(count):
            name = f"agent-{number:02d}"
            self.journals[name] = self.base / f"{name}.journal"
            orders = Orders(
                urls=[f"{one.url.replace('http', 'ws', 1)}/ws" for one in self.coordinators],
                token=token,
                agent_id=name,
                slots=slots,
                journal=str(self.journals[name]),
                work_s=work_s,
            )
            agent = Process(
                name,
                (sys.executable, "-m", "tests.chaos.agent"),
                environment(),
                self.base / "agents.log",
                msgspec.json.encode(orders) + b"\n",
            )
            await agent.start()
            self.agents.append(agent)

    @property
    def deaths(self) -> dict[int, float]:
        return {pid: at for agent in self.agents for pid, at in agent.deaths.items()}

    async def stop(self) -> None:
        for process in (*self.agents, *self.coordinators):
            if process.alive:
                await process.kill()
        for coordinator in self.coordinators:
            coordinator.close()
        await self.http.aclose()


@contextlib.asynccontextmanager
async def running(base: Path, *, keep: bool = False) -> AsyncIterator[Cluster]:
    """PostgreSQL with every durability setting on, and two coordinators that are ready. With `keep` the database goes
    on afterwards."""
    postgres = EmbeddedPostgres(base / "postgres")
    await postgres.start()
    token = secrets.token_hex(32)
    env = {
        **environment(),
        **TIMES,
        "KICI_DATABASE_URL": postgres.url,
        "KICI_SECRET_KEY": secrets.token_hex(32),
        "KICI_BOOTSTRAP_ADMIN_TOKEN": token,
        "KICI_STORAGE_FS_PATH": str(base / "objects"),
        "KICI_LOG_FORMAT": "plain",
        "KICI_DIE_WITH_PARENT": "true",
    }
    cluster = Cluster(base, postgres, [Coordinator(name, base, env) for name in ("coordinator-a", "coordinator-b")])
    cluster.http.headers["authorization"] = f"Bearer {token}"
    try:
        for coordinator in cluster.coordinators:
            await coordinator.start()
        for coordinator in cluster.coordinators:
            await coordinator.ready(cluster.http)
        yield cluster
    finally:
        await cluster.stop()
        if not keep:
            await postgres.stop()
