from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from asyncpg import Pool, Record

from tests.support.intake_server import Orchestrator
from tests.support.local_repository import bare, commit, git, hooked, isolated_python

__all__ = ["bare", "commit", "git", "hooked", "isolated_python"]


@pytest.fixture
async def orchestrator(pool: Pool[Record]) -> AsyncIterator[Orchestrator]:
    running = Orchestrator(pool)
    async with running.serve():
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        yield client
