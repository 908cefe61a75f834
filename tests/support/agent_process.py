"""A real agent process, as an operator starts it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kici.runner.processes import descendants


class AgentProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code."""
        try:
            async with asyncio.timeout(40):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"the agent did not end:\n{self.log()}") from None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def runners(self) -> list[int]:
        """Processes below it that run the runner, the innermost last."""
        return [pid for pid in descendants(self.process.pid) if b"kici.runner" in _read(pid, "cmdline")]

    def rss_mb(self) -> float:
        return rss_mb(self.process.pid)


@asynccontextmanager
async def running(base: Path, url: str, env: Mapping[str, str]) -> AsyncIterator[AgentProcess]:
    log = base / "agent.log"
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kici.agent.main"),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
                "KICI_ORCHESTRATOR_URL": url,
                "KICI_AGENT_ID": "agent",
                "KICI_AGENT_TOKEN": "kat_" + "0123456789abcdef" * 4,
                "KICI_WORK_DIR": str(base / "work"),
                "KICI_LOG_FORMAT": "json",
                "KICI_SANDBOX": "false",
                "KICI_DIE_WITH_PARENT": "1",
                **env,
            },
            stdout=out,
            stderr=out,
        )
    agent = AgentProcess(process, log)
    try:
        yield agent
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def rss_mb(pid: int) -> float:
    line = next(one for one in _read(pid, "status").splitlines() if one.startswith(b"VmRSS"))
    return int(line.split()[1]) / 1024


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
