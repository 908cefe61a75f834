from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.identity.tokens import digest
from tests.support import rows
from tests.support.api_server import JOB_TOKEN, TOKENS, Parts, client, serve


@pytest.fixture
async def parts(pool: Pool[Record], database_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    async with serve(pool, database_url, tmp_path) as served:
        yield served


@pytest.fixture
async def admin(parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    async with client(parts.url, TOKENS["admin"]) as opened:
        yield opened


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    """A running job of two steps with a valid job token."""
    job = await rows.add_job(pool, await rows.add_run(pool), steps=("compile", "test"))
    await rows.add_queue_row(pool, job, token_hash=digest(JOB_TOKEN))
    return job
