"""Lets artifacts go whose time is over. Their rows stay, so that who asks for one is told what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from kici.orchestrator.caches import metrics, sweep_objects
from kici.orchestrator.caches.sweep_objects import Pass, SweepObjects
from kici.orchestrator.store import artifacts
from kici.orchestrator.store.database import Db

log = structlog.get_logger(__name__)


class Settings(sweep_objects.Settings, frozen=True, kw_only=True):
    ttl: timedelta | None = timedelta(days=90)
    """Since it was made; None = for ever."""
    grace: timedelta = timedelta(minutes=20)
    """For those who still read one; longer than a signed address is valid."""


class ExpireArtifacts(SweepObjects[Settings, artifacts.Leftover]):
    async def _expire(self, db: Db) -> int:
        """A rerun has a row of its own for what it has taken over."""
        settings = self._settings
        return 0 if settings.ttl is None else await artifacts.expire(db, settings.ttl, settings.batch)

    async def _leftovers(self, db: Db) -> list[artifacts.Leftover]:
        return await artifacts.leftovers(db, self._settings.grace, self._settings.batch)

    async def _forget(self, db: Db, gone: Sequence[artifacts.Leftover]) -> None:
        await artifacts.forget(db, [one.object_key for one in gone])

    def _tell(self, done: Pass) -> None:
        metrics.ARTIFACTS_EXPIRED.inc(done.expired)
        if done.expired or done.gone:
            log.info("artifacts went whose time was over", expired=done.expired, removed=done.gone)
