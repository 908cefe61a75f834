from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.http import application
from kici.orchestrator.intake import endpoint
from kici.orchestrator.intake.accept import Intake
from kici.orchestrator.intake.endpoint import Endpoint
from kici.orchestrator.intake.inflight import InflightBytes
from kici.orchestrator.intake.sources import WEBHOOK_SECRET, Sources, scope_of
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import sources
from kici.orchestrator.store.notify import Notifier
from kici.orchestrator.store.sources import NewSource, StoredSource
from tests.support.local_repository import bare, commit, git, hooked, isolated_python
from tests.support.serving import serving

__all__ = ["bare", "commit", "git", "hooked", "isolated_python"]

MIB = 1024 * 1024


class RecordingNotifier(Notifier):
    """Keeps what was announced; it does not run, so that nobody else is told."""

    def __init__(self, pool: Pool[Record]) -> None:
        super().__init__(pool)
        self.announced: list[str] = []

    def send(self, channel: str, key: str = "") -> None:
        super().send(channel, key)
        self.announced.append(channel)


class Orchestrator:
    """Intake behind a real socket."""

    def __init__(self, pool: Pool[Record], *, inflight: int = 128 * MIB, spool_directory: Path | None = None) -> None:
        self.pool = pool
        self.secrets = ScopedSecrets(KeyRing({1: bytes(range(32))}))
        self.sources = Sources(pool, self.secrets)
        self.notifier = RecordingNotifier(pool)
        self.intake = Intake(pool, self.notifier)
        self.inflight = InflightBytes(inflight)
        self.endpoint = Endpoint(
            self.sources, self.intake, self.inflight, spool_above=MIB, spool_directory=spool_directory
        )
        self.url = ""

    async def add(self, new: NewSource, secret: str = "s3cret") -> StoredSource:
        async with self.pool.acquire() as db, db.transaction():
            source = await sources.create(db, new)
            assert source
            await self.secrets.put(db, SYSTEM, scope_of(source.id), WEBHOOK_SECRET, secret)
        await self.sources.load()
        return source

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        await self.sources.load()
        commits = asyncio.create_task(self.intake.run())
        try:
            async with serving(application(endpoint.routes(self.endpoint))) as self.url:
                yield
        finally:
            commits.cancel()
            await asyncio.gather(commits, return_exceptions=True)

    async def rows(self) -> list[Record]:
        return await self.pool.fetch(
            "select e.*, p.body from event_log e left join event_payloads p on p.event_id = e.id order by e.received_at"
        )


@pytest.fixture
async def orchestrator(pool: Pool[Record]) -> AsyncIterator[Orchestrator]:
    running = Orchestrator(pool)
    async with running.serve():
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        yield client
