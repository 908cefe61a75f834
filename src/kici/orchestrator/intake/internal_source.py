"""The source of a repository that the orchestrator itself keeps: it has a row like the others, made at each start."""

from __future__ import annotations

from asyncpg import Pool, Record

from kici.orchestrator.errors import Conflict
from kici.orchestrator.intake.sources import WEBHOOK_SECRET, Sources, scope_of
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import sources
from kici.orchestrator.store.sources import INTERNAL, NewSource, StoredSource


async def register_internal_source(
    pool: Pool[Record], secrets: ScopedSecrets, known: Sources, *, name: str, secret: str
) -> StoredSource:
    """Let the hook that signs with `secret` deliver under `name`. May be repeated: the last secret counts.

    Raises `Conflict` if another kind of source has the name.
    """
    async with pool.acquire() as db, db.transaction():
        source = await sources.create(db, NewSource(name=name, provider=INTERNAL))
        if source is None:
            source = await sources.find(db, name)
        if source is None or source.provider != INTERNAL or source.name != name:
            raise Conflict(f"a source that is not a local repository has the name {name!r}: remove or rename it")
        await secrets.put(db, SYSTEM, scope_of(source.id), WEBHOOK_SECRET, secret)
    await known.load()
    return source
