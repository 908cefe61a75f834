"""The program as it is started: signals, files, refusals, crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.services import until

KEY = "0" * 64
PROGRAM = (sys.executable, "-m", "kici.orchestrator.main")


class Orchestrator:
    """One process with its data directory."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path, client: httpx.AsyncClient) -> None:
        self.process = process
        self.data = data
        self.client = client

    async def ready(self) -> dict[str, Any]:
        """Wait until `/ready` says so; answers its body."""
        await until(self._ready, seconds=60)
        answer = await self.client.get("/ready")
        checks: dict[str, Any] = answer.json()["checks"]
        return checks

    async def _ready(self) -> bool:
        assert self.process.returncode is None, "it has ended"
        try:
            address = json.loads((self.data / "orchestrator.json").read_bytes())
        except FileNotFoundError:
            return False
        if address["pid"] != self.process.pid:
            return False  # of one that was killed
        self.client.base_url = httpx.URL(address["url"])
        return (await self.client.get("/ready")).status_code == 200

    async def ends(self) -> tuple[int, str]:
        async with asyncio.timeout(60):
            said, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()

    async def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return await self.ends()


def environment(data: Path, **variables: str) -> Mapping[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KICI_")}
    path = os.pathsep.join(entry for entry in sys.path if entry.endswith("src"))
    return (
        inherited
        | {"PYTHONPATH": path, "KICI_DATA_DIR": str(data), "KICI_PORT": "0", "KICI_SECRET_KEY": KEY}
        | variables
    )


@asynccontextmanager
async def started(data: Path, fds: tuple[int, ...] = (), /, **variables: str) -> AsyncIterator[Orchestrator]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        env=environment(data, **variables),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=fds,
    )
    # An inherited socket takes requests in before the program has started.
    async with httpx.AsyncClient(timeout=60) as client:
        orchestrator = Orchestrator(process, data, client)
        try:
            yield orchestrator
        finally:
            if process.returncode is None:
                await orchestrator.stop()


async def test_with_no_configuration_it_serves_and_stops_cleanly(folder: Path) -> None:
    async with started(folder, KICI_ADMIN_URL="http://x", KICI_HEARTBEET_S="1") as orchestrator:
        assert await orchestrator.ready() == {"database": True, "lease": True}
        health = (await orchestrator.client.get("/health")).json()
        assert health["status"] == "ok"
        metrics = await orchestrator.client.get("/metrics")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "kici_service_failures_total" in metrics.text
        code, said = await orchestrator.stop()
    assert code == 0, said
    assert not (folder / "orchestrator.json").exists()
    assert not (folder / "postgres" / "data" / "postmaster.pid").exists()
    assert "KICI_HEARTBEET_S is unknown: is KICI_HEARTBEAT_S meant?" in said
    assert "KICI_ADMIN_URL" not in said
    assert (folder / "postgres" / "password").read_text() not in said


async def test_one_that_was_killed_leaves_a_database_that_the_next_adopts_and_stops(folder: Path) -> None:
    async with started(folder) as first:
        await first.ready()
        postmaster = (folder / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0]
        first.process.kill()
        assert (await first.ends())[0] == -signal.SIGKILL
    async with started(folder) as second:
        await second.ready()
        assert (folder / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0] == postmaster
    assert not (folder / "postgres" / "data" / "postmaster.pid").exists()


async def test_while_the_database_is_away_it_is_alive_but_not_ready_and_it_comes_back(folder: Path) -> None:
    async with started(folder) as orchestrator:
        await orchestrator.ready()
        pid = int((folder / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        assert (await orchestrator.client.get("/health")).status_code == 200
        assert await orchestrator.ready() == {"database": True, "lease": True}


async def test_an_inherited_socket_and_a_given_database_are_used(folder: Path, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd, port = listener.fileno(), listener.getsockname()[1]
        variables = {"KICI_LISTEN_FD": str(fd), "KICI_DATABASE_URL": database_url, "KICI_BASE_PATH": "/kici"}
        async with started(folder, (fd,), **variables) as orchestrator:
            url = f"http://127.0.0.1:{port}/kici"

            async def ready() -> bool:
                return (await orchestrator.client.get(f"{url}/ready")).status_code == 200

            await until(ready, seconds=60)
            assert not (folder / "postgres").exists()
            code, said = await orchestrator.stop()
    assert code == 0, said
    assert "kici_test" not in said


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"KICI_MODE": "platform"}, "error: KICI_MODE: 'platform' needs the hosted relay"),
        ({"KICI_PORT": "many"}, "error: KICI_PORT: 'many' is not a whole number"),
        ({"KICI_CLUSTER_ROLE": "worker"}, "error: the worker role is not there yet"),
        ({"KICI_DATA_DIR": "/proc/kici"}, "error: data-dir: no writable directory among candidates: /proc/kici"),
    ],
)
async def test_what_it_cannot_be_is_refused_with_a_sentence(
    folder: Path, variables: dict[str, str], sentence: str
) -> None:
    async with started(folder, **variables) as orchestrator:
        code, said = await orchestrator.ends()
    assert code == 1
    assert sentence in said
    assert "Traceback" not in said


async def test_a_port_that_is_taken_is_refused_before_anything_was_started(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with started(folder, KICI_PORT=str(taken.getsockname()[1])) as orchestrator:
            code, said = await orchestrator.ends()
    assert code == 1
    assert "(KICI_HOST, KICI_PORT) cannot be listened on: Address already in use" in said
    assert not (folder / "postgres").exists()


async def test_it_ends_with_the_process_that_started_it(folder: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"),
        *PROGRAM,
        env=environment(folder, KICI_DIE_WITH_PARENT="true"),
        stdout=asyncio.subprocess.DEVNULL,
    )

    async def announced() -> bool:
        return (folder / "orchestrator.json").exists()

    async def gone() -> bool:
        return not (folder / "postgres" / "data" / "postmaster.pid").exists() and not await announced()

    try:
        await until(announced, seconds=60)
    finally:
        parent.kill()
        await parent.wait()
    await until(gone, seconds=30)


async def test_help_and_version_load_nothing_heavy() -> None:
    program = (
        "import sys; from kici.orchestrator.main import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment(Path("/nowhere"))
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    assert not {"litestar", "asyncpg", "uvicorn", "alembic", "obstore"} & set(said.decode().split())


async def test_an_idle_orchestrator_has_loaded_neither_alembic_nor_its_like(folder: Path) -> None:
    async with started(folder) as orchestrator:
        await orchestrator.ready()
        maps = Path(f"/proc/{orchestrator.process.pid}/maps").read_text()
        assert "psycopg" not in maps
        assert "sqlalchemy" not in maps
        status = Path(f"/proc/{orchestrator.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        assert int(resident.split()[1]) < 90 * 1024
