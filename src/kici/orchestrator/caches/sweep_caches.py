"""Lets go cache entries that nobody has found for long, and removes the objects of those that are gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import metrics
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.store import caches
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    ttl: timedelta = timedelta(days=7)
    grace: timedelta = timedelta(minutes=20)
    """For those who still read an entry that has made room; longer than a signed address is valid."""
    interval: timedelta = timedelta(minutes=1)
    batch: int = 100


class Pass(Struct, frozen=True):
    expired: int
    removed: int


class RemovesParts(Protocol):
    async def remove(self, object_key: str, part_bytes: int | None) -> None:
        """Raises `Unavailable` when the store cannot be reached."""


class SweepCaches(LeaderService[Pass]):
    """Leader-only. Objects go before their row does: stopped in between, the next pass does it again."""

    def __init__(
        self,
        pool: Pool[Record],
        held: Lease,
        stored: RemovesParts,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        super().__init__(pool, held, settings.interval, on_pass=on_pass)
        self._stored = stored
        self._settings = settings

    async def run_once(self) -> Pass:
        settings = self._settings
        async with self._transaction() as db:
            expired = await caches.expire(db, settings.ttl, settings.batch)
            found = await caches.leftovers(db, grace=settings.grace, batch=settings.batch)
        removed = await self._remove(found)
        if removed:
            async with self._transaction() as db:
                await caches.forget(db, removed)
        metrics.EXPIRED.inc(expired)
        if expired or removed:
            log.info("swept caches", expired=expired, removed=len(removed))
        return Pass(expired, len(removed))

    async def _remove(self, found: list[caches.Leftover]) -> list[str]:
        removed = []
        for one in found:
            try:
                await self._stored.remove(one.object_key, one.part_bytes)
            except Unavailable as error:
                log.warning("cache objects stay, the object store is away", error=str(error))
                break
            removed.append(one.id)
        return removed

    def _is_full(self, done: Pass) -> bool:
        return self._settings.batch in (done.expired, done.removed)
