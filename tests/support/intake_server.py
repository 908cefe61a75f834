"""Intake and the API of sources and agent tokens behind a real socket, with real tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from asyncpg import Pool, Record

from kici.orchestrator.api import agent_tokens, concurrency
from kici.orchestrator.api import agents as agents_api
from kici.orchestrator.api import sources as sources_api
from kici.orchestrator.http import application
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import create_admin
from kici.orchestrator.intake import endpoint
from kici.orchestrator.intake.accept import Intake
from kici.orchestrator.intake.endpoint import Endpoint
from kici.orchestrator.intake.inflight import InflightBytes
from kici.orchestrator.intake.sources import WEBHOOK_SECRET, Sources, scope_of
from kici.orchestrator.lifecycle.group_repair import release_by_hand
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import sources
from kici.orchestrator.store.notify import Notifier
from kici.orchestrator.store.sources import NewSource, StoredSource
from tests.support.serving import serving

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
            async with serving(application(self._routes(), raw={endpoint.PATH: self.endpoint})) as self.url:
                yield
        finally:
            commits.cancel()
            await asyncio.gather(commits, return_exceptions=True)

    def _routes(self) -> list[Any]:
        access = Access(self.pool)
        return [
            *sources_api.routes(
                access, self.pool, self.secrets, self.sources, self.notifier, public_url=lambda: self.url
            ),
            *agent_tokens.routes(access, self.pool, self.notifier),
            *agents_api.routes(self.pool, access),
            *concurrency.routes(self.pool, access, self.notifier, release=release_by_hand),
        ]

    async def token(self, role: str = "owner") -> str:
        async with self.pool.acquire() as db:
            return (await create_admin(db, label=f"test {role}", role=role)).token

    async def rows(self) -> list[Record]:
        return await self.pool.fetch(
            "select e.*, p.body from event_log e left join event_payloads p on p.event_id = e.id order by e.received_at"
        )
