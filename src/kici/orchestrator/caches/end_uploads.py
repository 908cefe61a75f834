"""Closes uploads that nobody has completed, and removes the objects of all that were not published."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from kici.orchestrator.caches import metrics, parts, sweep_objects
from kici.orchestrator.caches.sweep_objects import Pass, SweepObjects
from kici.orchestrator.store import uploads
from kici.orchestrator.store.database import Db

log = structlog.get_logger(__name__)


class Settings(sweep_objects.Settings, frozen=True, kw_only=True):
    keep: timedelta = parts.STALE_AFTER
    """Of what is closed: until nobody writes to it any more."""


class EndUploads(SweepObjects[Settings, uploads.Leftover]):
    async def _expire(self, db: Db) -> int:
        return await uploads.expire(db, self._settings.keep, self._settings.batch)

    async def _leftovers(self, db: Db) -> list[uploads.Leftover]:
        return await uploads.leftovers(db, self._settings.batch)

    async def _remove(self, one: uploads.Leftover) -> None:
        if not one.published:
            await super()._remove(one)

    async def _forget(self, db: Db, gone: Sequence[uploads.Leftover]) -> None:
        await uploads.forget(db, [one.id for one in gone])

    def _tell(self, done: Pass) -> None:
        metrics.UPLOADS_EXPIRED.inc(done.expired)
        if done.expired:
            log.info("closed uploads that nobody completed", uploads=done.expired)
