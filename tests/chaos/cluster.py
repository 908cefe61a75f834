"""The processes: PostgreSQL, two coordinators, agents; how each is started, killed, and found to serve again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec

from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.chaos.agent import Orders

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


class Process:
    """One that is killed and started again. `since` and `deaths` are of the host's monotonic clock."""

    def __init__(self, name: str, argv: tuple[str, ...], env: dict[str, str], log: Path, said: bytes = b"") -> None:
        self.name = name
        self.log = log
        self.deaths: dict[int, float] = {}
        """pid → when it was seen to be gone."""
        self.frozen = False
        self._argv = argv
        self._env = env
        self._said = said
        self._process: asyncio.subprocess.Process | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    async def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._env, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )
        assert self._process.stdin
        self._process.stdin.write(self._said)

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it and wait for its end."""
        assert self._process
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        self.frozen = False
        await self._process.wait()
        self.deaths[self._process.pid] = time.monotonic()

    def freeze(self) -> None:
        self.frozen = True
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.frozen and self.alive:
            os.kill(self.pid, signal.SIGCONT)
        self.frozen = False


class Coordinator(Process):
    """Its port stays the same over restarts: it is bound, never listened on, by us."""

    def __init__(self, name: str, base: Path, env: dict[str, str]) -> None:
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        data = base / name
        data.mkdir()
        super().__init__(
            name,
            (sys.executable, "-m", "kici.orchestrator.main"),
            {**env, "KICI_DATA_DIR": str(data), "KICI_PORT": str(self.port), "KICI_INSTANCE_ID": ""},
            base / f"{name}.log",
        )

    def close(self) -> None:
        self._reserved.close()

    async def ready(self, http: httpx.AsyncClient, *, patience_s: float = 60) -> None:
        async with asyncio.timeout(patience_s):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"{self.url}/ready", timeout=2)).status_code == 200:
                        return
                await asyncio.sleep(0.05)


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
                _environment(),
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
        **_environment(),
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


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KICI_")}
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return inherited | {"PYTHONPATH": os.pathsep.join(["src", "."])}
