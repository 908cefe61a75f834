"""Fixtures for everybody. `pool` is a fresh migrated database; nothing a test starts outlives it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from asyncpg import Pool, Record
from hypothesis import settings

from kici.orchestrator.store.database import create_pool
from tests.support import million, postgres

# A traceback with all locals takes seconds to draw, and the deadlines of a test count them.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# An example that takes long on a busy machine is no failure.
settings.register_profile("kici", deadline=None)
settings.load_profile("kici")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, what `.ci/run` installs is there: a test that skips for the lack of it has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") and "is not installed" in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """One server for each test process."""
    with postgres.server() as server:
        yield server


@pytest.fixture
async def database_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    """A fresh migrated database, for tests that start processes or need connections of their own."""
    async with postgres.clone(postgres_server) as url:
        yield url


@pytest.fixture
async def empty_database_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    async with postgres.empty(postgres_server) as url:
        yield url


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool[Record]]:
    """A pool on a fresh migrated database."""
    pool = await create_pool(database_url, 10)
    try:
        yield pool
    finally:
        pool.terminate()


@pytest.fixture(scope="session")
def million_url(postgres_server: postgres.Server) -> Iterator[str]:
    """A database with a million waiting jobs and a million rows of history, made once (see `tests.support.million`).

    Tests that look at plans share it, and leave it as it was: `explained` rolls back.
    """
    with million.database(postgres_server) as url:
        yield url


@pytest.fixture
async def million_rows(million_url: str) -> AsyncIterator[Pool[Record]]:
    """A pool on `million_url`."""
    pool = await create_pool(million_url, 4)
    try:
        yield pool
    finally:
        pool.terminate()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary directory with a short path that other users may pass (`tmp_path` is closed to them when root).

    For databases: in memory where there is room.
    """
    with postgres.reachable_folder(postgres.memory()) as path:
        yield path
