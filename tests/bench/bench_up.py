"""`kici up` to its line of JSON on a data directory that has been used before, beside what it cannot do without.

The floor: the embedded PostgreSQL starts until it accepts a connection, then one Python imports the libraries that the
server is built on. Both on a directory of their own that has been started and stopped before.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.bench.harness import Result, compare, process_ms
from tests.support.stack import Stack

NAMES = ("up_ready_ms",)
REPEATS = 9
LIBRARIES = "import litestar, uvicorn, uvloop, asyncpg, msgspec, structlog, prometheus_client"


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    base = Path(tempfile.mkdtemp(prefix="kici-bench-"))
    base.chmod(0o755)
    try:
        values, floors = [], []
        for number in range(REPEATS + 1):
            floor = await postgres(base / "floor") + await asyncio.to_thread(
                process_ms, [sys.executable, "-c", LIBRARIES]
            )
            value = await up(base)
            if number:  # the first ones make the directories
                floors.append(floor)
                values.append(value)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return [compare("up_ready_ms", values, "postgres ready + imports", floors, limit=2.5)]


async def up(base: Path) -> float:
    stack = Stack(base, {})
    started = time.perf_counter()
    try:
        await stack.start()
        return (time.perf_counter() - started) * 1_000
    finally:
        await stack.stop()


async def postgres(directory: Path) -> float:
    server = EmbeddedPostgres(directory)
    started = time.perf_counter()
    try:
        await server.start()
        return (time.perf_counter() - started) * 1_000
    finally:
        await server.stop()
