from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings
from tests.support import rows
from tests.support.told import Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(Settings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
async def writer(pool: Pool[Record], told: Told) -> AsyncIterator[LogWriter]:
    writer = LogWriter(pool, told)
    service = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    return await rows.add_job(pool, await rows.add_run(pool), steps=("compile", "test"))
