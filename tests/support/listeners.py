"""Workflows on default branches, as a push has registered them."""

from __future__ import annotations

from datetime import UTC, datetime

from asyncpg import Pool, Record

from kici.engine.lockfile import Trigger
from kici.orchestrator.store import registrations
from kici.orchestrator.store.registrations import Repository, RepositoryContext
from tests.support.locks import workflow


async def listen(pool: Pool[Record], *triggers: Trigger, name: str = "listener", repo: str = "local/other") -> None:
    """The repository has this one workflow."""
    context = RepositoryContext("internal", f"/git/{repo}", "main", "c" * 64)
    async with pool.acquire() as db, db.transaction():
        assert await registrations.replace(
            db, Repository("internal:local", repo, context), "d" * 40, [workflow(name, on=triggers)], datetime.now(UTC)
        )
