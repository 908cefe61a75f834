"""Lets go cache entries that nobody has found for long, and removes the objects of those that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from kici.orchestrator.caches import metrics, sweep_objects
from kici.orchestrator.caches.sweep_objects import Pass, SweepObjects
from kici.orchestrator.store import caches
from kici.orchestrator.store.database import Db

log = structlog.get_logger(__name__)


class Settings(sweep_objects.Settings, frozen=True, kw_only=True):
    ttl: timedelta = timedelta(days=7)
    grace: timedelta = timedelta(minutes=20)
    """For those who still read an entry that has made room; longer than a signed address is valid."""


class SweepCaches(SweepObjects[Settings, caches.Leftover]):
    async def _expire(self, db: Db) -> int:
        return await caches.expire(db, self._settings.ttl, self._settings.batch)

    async def _leftovers(self, db: Db) -> list[caches.Leftover]:
        return await caches.leftovers(db, grace=self._settings.grace, batch=self._settings.batch)

    async def _forget(self, db: Db, gone: Sequence[caches.Leftover]) -> None:
        await caches.forget(db, [one.id for one in gone])

    def _tell(self, done: Pass) -> None:
        metrics.EXPIRED.inc(done.expired)
        if done.expired or done.gone:
            log.info("swept caches", expired=done.expired, removed=done.gone)
