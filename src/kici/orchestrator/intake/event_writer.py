"""Writes deliveries, those that come together in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import InterfaceError, Pool, PostgresError, Record
from asyncpg.pool import PoolConnectionProxy

from kici.orchestrator.store import database, events
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.group_commit import GroupCommit

_MAX_ITEMS = 256
_MAX_BYTES = 4 * 1024 * 1024


class EventWriter:
    """A service. It keeps one connection of the pool: to take and give one back would cost a tenth of a delivery."""

    def __init__(self, pool: Pool[Record]) -> None:
        self._pool = pool
        self._kept: PoolConnectionProxy[Record] | None = None
        self._commits: GroupCommit[NewEvent, bool] = GroupCommit(
            self._insert, max_items=_MAX_ITEMS, max_bytes=_MAX_BYTES, size_of=lambda event: event.size
        )

    async def run(self) -> None:
        try:
            await self._commits.run()
        finally:
            self._drop()

    async def submit(self, event: NewEvent) -> bool:
        """False if the delivery was there before. Raises `Unavailable`."""
        return await self._commits.submit(event)

    async def _insert(self, batch: Sequence[NewEvent]) -> Sequence[bool]:
        if self._lost():
            self._kept = await self._pool.acquire()
        assert self._kept
        try:
            return await events.insert_batch(self._kept, batch)
        except BaseException as error:
            # After an error of a statement a connection is as good as before; after anything else nobody knows.
            if not isinstance(error, PostgresError) or database.is_away(error):
                self._drop()
            raise

    def _lost(self) -> bool:
        try:
            return self._kept is None or self._kept.is_closed()
        except InterfaceError:  # it ended, and the pool has taken it back
            return True

    def _drop(self) -> None:
        if self._kept is not None and not self._lost():
            self._kept.terminate()
        self._kept = None
