"""Moves the bodies of processed events out of the database.

A body is put into the object store under a key that follows from its event, then the event's row gets that key and the
database's copy goes, in one statement. Stopped anywhere between, the next pass does it again. Two coordinators may do
the same work; that is harmless.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import database, event_claims
from kici.orchestrator.store.event_claims import ProcessedBody

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=5)
    batch: int = 8
    """Bodies at a time: each may have 25 MB."""


class Pass(Struct, frozen=True):
    moved: int
    failed: int


class PutsObjects(Protocol):
    async def put(self, key: str, data: bytes) -> object:
        """Raises `Unavailable` when the store cannot be reached."""


class MovePayloads:
    def __init__(
        self,
        pool: Pool[Record],
        objects: PutsObjects,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._objects = objects
        self._settings = settings
        self._on_pass = on_pass

    async def run(self) -> None:
        async for pace in Pace(self._settings.interval):
            try:
                done = await self.run_once()
            except Exception as error:
                if not database.is_away(error):
                    raise
                log.warning("payloads stay where they are, the database is away", error=str(error))
                continue
            if done.moved == self._settings.batch:
                pace.wake()
            self._on_pass(done)

    async def run_once(self) -> Pass:
        async with self._pool.acquire() as db:
            bodies = await event_claims.processed_bodies(db, self._settings.batch)
        moved = 0
        for body in bodies:
            moved += await self._move(body)
        return Pass(moved=moved, failed=len(bodies) - moved)

    async def _move(self, body: ProcessedBody) -> bool:
        key = object_key(body.org_id, body.event_id)
        packed = await asyncio.to_thread(gzip.compress, body.body, 6, mtime=0)
        try:
            await self._objects.put(key, packed)
        except Unavailable as error:
            log.warning("a payload cannot be put into the object store", key=key, error=str(error))
            return False
        async with self._pool.acquire() as db:
            await event_claims.body_moved(db, body.event_id, key)
        return True


def object_key(org_id: str, event_id: str) -> str:
    """By the event's own id: a delivery id is what its sender likes, and no name in a store is made of that."""
    return f"event-log/{org_id}/{event_id}.json.gz"
