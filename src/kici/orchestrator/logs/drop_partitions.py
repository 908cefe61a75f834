"""Drops hours of log chunks whole, once everything in them is compacted and old enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.logs import compact
from kici.orchestrator.pace import Pace
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


class DropLogPartitions:
    """Leader-only. Each partition is one transaction."""

    def __init__(
        self,
        pool: Pool[Record],
        held: lease.Lease,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._held = held
        self._settings = settings
        self._on_pass = on_pass

    async def run(self) -> None:
        """Pass after pass until cancelled. Raises `LeaseLost` when another coordinator leads."""
        async for _ in Pace(self._settings.interval):
            self._on_pass(await self.run_once())

    async def run_once(self) -> Pass:
        dropped = kept = reminded = 0
        async with self._pool.acquire() as db:
            now: datetime = await db.fetchval("select now()")
            hours = await logs.partitions(db)
        for hour in hours:
            if hour + logs.HOUR + self._settings.retention > now.astimezone(UTC):
                break
            try:
                async with self._pool.acquire() as db, db.transaction():
                    await lease.guard(db, self._held)
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
