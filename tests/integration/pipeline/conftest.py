from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asyncpg import Pool, Record

from kici.forges.git.fetch import Repositories
from kici.forges.local.delivery import PUSH
from kici.orchestrator.intake.sources import CLONE_TOKEN, WEBHOOK_SECRET, Sources, scope_of
from kici.orchestrator.lifecycle.new_run import settle_new_runs
from kici.orchestrator.pipeline.lock_files import LockFiles
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.service import Done, Pipeline, Settings
from kici.orchestrator.pipeline.unservable import Labels
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import events, sources
from kici.orchestrator.store.sources import NewSource, StoredSource
from tests.support.forge import Forge
from tests.support.git import WorkTree, bare
from tests.support.serving import serving

ZERO = "0" * 40
LOCK = ".kici/kici.lock.json"


class Notifications(list[tuple[str, str]]):
    def send(self, channel: str, key: str = "") -> None:
        self.append((channel, key))


class Rig:
    """The pipeline on a real database, with a repository of our own (`local/app`) and one at a forge (`team/app`)."""

    def __init__(self, pool: Pool[Record], tmp_path: Path, forge: Forge, forge_url: str) -> None:
        self.pool = pool
        self.forge = forge
        self.forge_url = forge_url
        self.local = WorkTree(tmp_path / "local", bare(tmp_path / "kept" / "local.git"))
        self.remote = WorkTree(tmp_path / "remote", bare(tmp_path / "forge" / "team" / "app.git"))
        self.secrets = ScopedSecrets(KeyRing({1: bytes(range(32))}))
        self.sources = Sources(pool, self.secrets)
        self.repositories = Repositories(
            tmp_path / "mirrors", {"local/app": tmp_path / "kept" / "local.git"}, timeout_s=20
        )
        self.notified = Notifications()
        self.pipeline = self.another()

    def another(
        self,
        holder: str = "coordinator-a",
        settings: Settings = Settings(),
        labels: Labels | None = None,
        **options: Any,
    ) -> Pipeline:
        parts = Parts(self.pool, self.sources, self.repositories, LockFiles(self.repositories, limit=10), labels)
        return Pipeline(holder, self.pool, parts, settle_new_runs, self.notified, settings, **options)

    async def add_source(self, name: str, provider: str, *, clone_token: str = "") -> StoredSource:
        async with self.pool.acquire() as db, db.transaction():
            source = await sources.create(db, NewSource(name=name, provider=provider))
            assert source
            await self.secrets.put(db, SYSTEM, scope_of(source.id), WEBHOOK_SECRET, "s3cret")
            if clone_token:
                await self.secrets.put(db, SYSTEM, scope_of(source.id), CLONE_TOKEN, clone_token)
        await self.sources.load()
        return source

    async def deliver(self, source: StoredSource, event: str, body: Any, headers: dict[str, str] | None = None) -> str:
        """Store a delivery as intake does, and return the event's id."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        event_id = events.new_id()
        new = events.NewEvent(
            id=event_id,
            delivery_id=f"{source.routing_key}:{uuid.uuid4()}",
            routing_key=source.routing_key,
            event=event,
            action="",
            provider=source.provider,
            headers=headers or {"content-type": "application/json"},
            repo="",
            ref="",
            content_type="application/json",
            size=len(data),
            sha256="0" * 64,
            body=data,
        )
        async with self.pool.acquire() as db:
            assert await events.insert_batch(db, [new]) == [True]
        return event_id

    async def push(self, sha: str, *, ref: str = "refs/heads/main", before: str = ZERO, message: str = "change") -> str:
        """A push to the repository of our own, as its hook tells of it."""
        return await self.deliver(
            await self.local_source(),
            PUSH,
            {
                "repository": "local/app",
                "default_branch": "main",
                "ref": ref,
                "before": before,
                "after": sha,
                "commit": "" if sha == ZERO else sha,
                "message": message,
                "pusher": "ann",
                "changed_files": None,
            },
        )

    async def local_source(self) -> StoredSource:
        async with self.pool.acquire() as db:
            found = await sources.find(db, "local")
        return found or await self.add_source("local", "internal")

    async def github_source(self, name: str = "hub") -> StoredSource:
        async with self.pool.acquire() as db:
            found = await sources.find(db, name)
        return found or await self.add_source(name, "github", clone_token=self.forge.password)

    async def done(self) -> Done:
        """Work off the one event that is open."""
        (done,) = await self.pipeline.run_once()
        return done

    async def event(self, event_id: str) -> Record:
        row = await self.pool.fetchrow("select * from event_log where id = $1", event_id)
        assert row
        return row

    async def last_event(self) -> Record:
        row = await self.pool.fetchrow("select * from event_log order by received_at desc, id desc limit 1")
        assert row
        return row

    async def runs(self) -> list[Record]:
        return await self.pool.fetch("select * from execution_runs order by workflow_name, created_at")

    async def jobs(self) -> list[Record]:
        return await self.pool.fetch("select * from execution_jobs order by position")


@pytest.fixture
async def rig(pool: Pool[Record], tmp_path: Path) -> AsyncIterator[Rig]:
    forge = Forge(tmp_path / "forge", password="cl0ne")
    async with serving(forge) as url:
        yield Rig(pool, tmp_path, forge, url)
