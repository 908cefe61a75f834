"""Closes uploads that nobody has completed, and removes the objects of all that were not published."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import metrics, parts
from kici.orchestrator.caches.sweep_caches import RemovesParts
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.store import uploads
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    keep: timedelta = parts.STALE_AFTER
    """Of what is closed: until nobody writes to it any more."""
    interval: timedelta = timedelta(minutes=1)
    batch: int = 100


class Pass(Struct, frozen=True):
    closed: int
    forgotten: int


class EndUploads(LeaderService[Pass]):
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
            closed = await uploads.expire(db, settings.keep, settings.batch)
            found = await uploads.leftovers(db, settings.batch)
        forgotten = await self._remove(found)
        if forgotten:
            async with self._transaction() as db:
                await uploads.forget(db, forgotten)
        metrics.UPLOADS_EXPIRED.inc(closed)
        if closed:
            log.info("closed uploads that nobody completed", uploads=closed)
        return Pass(closed, len(forgotten))

    async def _remove(self, found: list[uploads.Leftover]) -> list[str]:
        gone = []
        for one in found:
            if not one.published:
                try:
                    await self._stored.remove(one.object_key, one.part_bytes)
                except Unavailable as error:
                    log.warning("what uploads left stays, the object store is away", error=str(error))
                    break
            gone.append(one.id)
        return gone

    def _is_full(self, done: Pass) -> bool:
        return self._settings.batch in (done.closed, done.forgotten)
