"""What every sweeper of runs, jobs and sessions is given, and the rhythm that all of them keep."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from datetime import timedelta

from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.leader_service import LeaderService, PassT
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.store import outages
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lease import Lease


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=2)
    batch: int = 200
    """Rows of one pass. A full batch is followed by the next one without a pause."""
    lease: timedelta = timedelta(seconds=15)
    """Of a coordinator: for so long after an outage nothing is held against anybody (`_is_outage_just_over`)."""


class Sweeper(LeaderService[PassT], ABC):
    """Leader-only. A sweeper finds what is due without a lock; lifecycle locks it in the one order, looks again and
    acts, or leaves it to the next pass. Wake-ups go out after the commit."""

    def __init__(
        self,
        pool: Pool[Record],
        held: Lease,
        notifier: Notifies,
        limits: Limits,
        settings: Settings,
        *,
        instance: str,
        on_pass: Callable[[PassT], None] = lambda done: None,
    ) -> None:
        super().__init__(pool, held, settings.interval, on_pass=on_pass)
        self._notifier = notifier
        self._limits = limits
        self._batch = settings.batch
        self._lease = settings.lease
        self._instance = instance

    async def _is_outage_just_over(self, db: Db) -> bool:
        """Then a pass does nothing: agents get a full lease's time to come back first."""
        return await outages.just_over(db, self._instance, self._lease)
