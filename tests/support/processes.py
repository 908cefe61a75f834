"""Real coordinators as processes of their own on one database, which a test starts, kills, freezes and thaws."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx


class Process:
    """One that is killed and started again. `since` and `deaths` are of the host's monotonic clock."""

    def __init__(self, name: str, argv: tuple[str, ...], env: Mapping[str, str], log: Path, said: bytes = b"") -> None:
        self.name = name
        self.log = log
        self.deaths: dict[int, float] = {}
        """pid → when it was seen to be gone."""
        self.frozen = False
        self.revivals = 0
        """How often it was started again because it had ended by itself."""
        self._killed = False
        self._starting = asyncio.Lock()
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
        self._killed = False
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._env, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )
        assert self._process.stdin
        self._process.stdin.write(self._said)

    async def revive(self) -> None:
        """Start it again if it has ended by itself, as whoever supervises it would."""
        async with self._starting:
            if not self.alive and not self._killed:
                self.revivals += 1
                await self.start()

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it and wait for its end."""
        assert self._process
        self._killed = True
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

    def __init__(self, name: str, base: Path, env: Mapping[str, str]) -> None:
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
        """Raises `AssertionError` with its log if it is not ready in time."""
        try:
            async with asyncio.timeout(patience_s):
                while not await self.is_ready(http):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            how = "is not ready" if self.alive else "has ended"
            raise AssertionError(f"{self.name} {how}:\n{self.log.read_text(errors='replace')[-5000:]}") from None

    async def is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get(f"{self.url}/ready", timeout=2)).status_code == 200
        except httpx.TransportError:
            return False


def environment() -> dict[str, str]:
    """Ours, without what is set for kici, and with the modules of the tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KICI_")}
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    root = Path(__file__).parents[2]
    return inherited | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
