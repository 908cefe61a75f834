"""Lets artifacts go whose time is over. Their rows stay, so that who asks for one is told what became of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import metrics
from kici.orchestrator.caches.sweep_caches import RemovesParts
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.store import artifacts
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    ttl: timedelta | None = timedelta(days=90)
    """Since it was made; None = for ever."""
    grace: timedelta = timedelta(minutes=20)
    """For those who still read one; longer than a signed address is valid."""
    interval: timedelta = timedelta(minutes=1)
    batch: int = 100


class Pass(Struct, frozen=True):
    expired: int
    """Rows: a rerun has one of its own for what it has taken over."""
    removed: int
    """Artifacts whose objects are gone."""


class ExpireArtifacts(LeaderService[Pass]):
    """Leader-only. Objects go before their rows say so: stopped in between, the next pass does it again."""

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
            expired = 0 if settings.ttl is None else await artifacts.expire(db, settings.ttl, settings.batch)
            found = await artifacts.leftovers(db, settings.grace, settings.batch)
        removed = await self._remove(found)
        if removed:
            async with self._transaction() as db:
                await artifacts.forget(db, removed)
        metrics.ARTIFACTS_EXPIRED.inc(expired)
        if expired or removed:
            log.info("artifacts went whose time was over", expired=expired, removed=len(removed))
        return Pass(expired, len(removed))

    async def _remove(self, found: list[artifacts.Leftover]) -> list[str]:
        removed = []
        for one in found:
            try:
                await self._stored.remove(one.object_key, one.part_bytes)
            except Unavailable as error:
                log.warning("expired artifacts stay, the object store is away", error=str(error))
                break
            removed.append(one.object_key)
        return removed

    def _is_full(self, done: Pass) -> bool:
        return done.expired >= self._settings.batch or done.removed == self._settings.batch
