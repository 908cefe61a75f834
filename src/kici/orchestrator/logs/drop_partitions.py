"""Drops hours of log chunks whole, once everything in them is compacted and old enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.logs import compact
from kici.orchestrator.store import lease, logs

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    retention: timedelta = timedelta(hours=24)
    """Counted from the end of the hour."""
    interval: timedelta = timedelta(minutes=10)


class Pass(Struct, frozen=True):
    dropped: int
    kept: int
    """Old enough, but not all in it is compacted, or somebody reads it now."""
    reminded: int
    """Logs whose compaction nobody had asked for."""


class DropLogPartitions(LeaderService[Pass]):
    """Leader-only. Each partition is one transaction."""

    def __init__(
        self,
        pool: Pool[Record],
        held: lease.Lease,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        super().__init__(pool, held, settings.interval, on_pass=on_pass)
        self._retention = settings.retention

    async def run_once(self) -> Pass:
        dropped = kept = reminded = 0
        async with self._pool.acquire() as db:
            now: datetime = await db.fetchval("select now()")
            hours = await logs.partitions(db)
        for hour in hours:
            if hour + logs.HOUR + self._retention > now.astimezone(UTC):
                break
            try:
                async with self._transaction() as db:
                    if await logs.hour_is_closed(db, hour):
                        await logs.drop_partition(db, hour)
                        dropped += 1
                    else:
                        kept += 1
                        for step_id in await logs.forgotten(db, hour):
                            await compact.put(db, step_id)
                            reminded += 1
            except asyncpg.LockNotAvailableError:
                kept += 1
        if dropped or reminded:
            log.info("dropped log partitions", dropped=dropped, kept=kept, reminded=reminded)
        return Pass(dropped, kept, reminded)
