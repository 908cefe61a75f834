from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from kici.orchestrator.api import agent_check, git
from kici.orchestrator.diagnostics import health
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings
from tests.support import coordinator
from tests.support.coordinator import Coordinator


class There:
    """A coordinator with the routes that a check asks, and what of it can be broken."""

    def __init__(self, objects: Path) -> None:
        self.objects = objects
        self.lease_valid = True
        self.of: Coordinator

    def routes(self, one: Coordinator) -> list[Any]:
        return [
            *health.routes(one.pool, lambda: self.lease_valid, instance=one.instance, version="test"),
            *agent_check.routes(one.pool, one.access, open_objects(Settings(storage_fs_path=self.objects))),
            *git.routes(one.access, {}),
        ]

    @property
    def port(self) -> int:
        return int(self.of.http_url.rpartition(":")[2])

    async def sessions(self) -> list[tuple[str, str, bool]]:
        rows = await self.of.pool.fetch("select id::text, agent_id, closed_at is null as open from agent_sessions")
        return [(row["id"], row["agent_id"], row["open"]) for row in rows]


@pytest.fixture
async def there(database_url: str, base: Path) -> AsyncIterator[There]:
    there = There(base / "objects")
    async with coordinator.running(database_url, more=there.routes) as there.of:
        yield there


class Said(Struct):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def hops(self) -> dict[str, dict[str, Any]]:
        return {hop["name"]: hop for hop in self.document["hops"]}

    @property
    def statuses(self) -> dict[str, str]:
        """Of all hops that are not ok."""
        return {name: hop["status"] for name, hop in self.hops.items() if hop["status"] != "ok"}

    def failed(self) -> str:
        """The one hop that failed, with what it told and the way out."""
        (name,) = (name for name, status in self.statuses.items() if status == "fail")
        assert self.code == 1
        return f"{name}: {self.hops[name]['told']} → {self.hops[name]['wayOut']}"


async def check(base: Path, url: str, token: str, **variables: str) -> Said:
    """As an operator starts it. Without a sandbox, unless the variables say otherwise."""
    return await started(base, url, token, variables, "--json")


async def started(
    base: Path, url: str, token: str, variables: Mapping[str, str], *options: str, under: Sequence[str] = ()
) -> Said:
    """`under` is a program that starts it."""
    process = await asyncio.create_subprocess_exec(
        *under,
        *(
            sys.executable,
            "-m",
            "kici.agent.main",
            "check",
            *options,
        ),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
            "KICI_ORCHESTRATOR_URL": url,
            "KICI_AGENT_TOKEN": token,
            "KICI_WORK_DIR": str(base / "work"),
            "KICI_SANDBOX": "false",
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())
