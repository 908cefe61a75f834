from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from asyncpg import Pool, Record
from click.testing import CliRunner, Result

from kici.cli.commands.runs import runs
from tests.support.api_server import TOKENS, Parts, serve

Kici: TypeAlias = Callable[..., Awaitable[Result]]


@pytest.fixture
async def parts(pool: Pool[Record], database_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    # The server runs in this process and would log into the output of the command.
    with structlog.testing.capture_logs():
        async with serve(pool, database_url, tmp_path) as served:
            yield served


@pytest.fixture
def kici(parts: Parts) -> Kici:
    """Calls `kici runs …` against the server."""

    async def call(*arguments: str, token: str = TOKENS["admin"]) -> Result:
        def invoke() -> Result:
            return CliRunner().invoke(runs, arguments, env={"KICI_URL": parts.url, "KICI_TOKEN": token})

        async with asyncio.timeout(30):
            return await asyncio.to_thread(invoke)

    return call
