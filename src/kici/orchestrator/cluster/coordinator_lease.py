"""This coordinator's own lease, which covers all its agents' sessions: one row, one write per interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from asyncpg import Pool, Record
from prometheus_client import Counter

from kici.orchestrator.store import coordinators
from kici.orchestrator.store.database import is_away

log = structlog.get_logger(__name__)

GAPS = Counter(
    "kici_coordinator_lease_gaps_total", "How often this coordinator has had its own lease again after a gap"
)


class CoordinatorLease:
    """Renewed every third of its length. While it is not `valid`, nothing may be acknowledged to an agent."""

    def __init__(
        self,
        pool: Pool[Record],
        instance: str,
        ttl: timedelta,
        *,
        version: str,
        url: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._ttl = ttl
        self._version = version
        self._url = url
        self._clock = clock
        self._until = float("-inf")
        self.instance = instance
        self.since: datetime | None = None
        """By the database's clock: since when the lease has been held without a gap. None before the first renewal."""

    def valid(self) -> bool:
        """By our own monotonic clock, counted from before the renewal was sent: never longer than the database says."""
        return self._clock() < self._until

    async def run(self) -> None:
        """Renew until cancelled. A renewal that fails is tried again at once, and then more slowly."""
        interval = self._ttl.total_seconds() / 3
        pause = interval / 50
        while True:
            try:
                await self.run_once()
            except Exception as error:
                if not is_away(error):
                    raise
                log.warning("the coordinator's lease was not renewed", valid=self.valid(), error=repr(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, interval)
            else:
                pause = interval / 50
                await asyncio.sleep(interval)

    async def run_once(self) -> None:
        """Renew now."""
        before = self._clock()
        patience = self._ttl.total_seconds() / 3
        async with asyncio.timeout(patience), self._pool.acquire() as db:
            since = await coordinators.renew(db, self.instance, self._ttl, version=self._version, url=self._url)
        if self.since not in (None, since):
            GAPS.inc()
            log.warning("the coordinator's lease is held again after a gap", since=since.isoformat())
        self.since = since
        self._until = before + self._ttl.total_seconds()

    async def leave(self) -> None:
        """Give the lease up, after everything that needs it has stopped."""
        self._until = float("-inf")
        try:
            async with asyncio.timeout(1), self._pool.acquire() as db:
                await coordinators.leave(db, self.instance)
        except Exception as error:
            if not is_away(error):
                raise
            log.info("the coordinator's lease was not given up: it runs out by itself", error=repr(error))
