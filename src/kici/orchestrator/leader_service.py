"""The shape of what one coordinator of the cluster does again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Generic, TypeVar

from asyncpg import Pool, Record

from kici.orchestrator.pace import Pace
from kici.orchestrator.store import lease
from kici.orchestrator.store.database import Db

PassT = TypeVar("PassT")
"""What one pass did: a frozen struct of counts."""


class LeaderService(ABC, Generic[PassT]):
    """A pass, a pause, a pass. Whatever a pass writes it writes in `_transaction`, so a replaced leader writes
    nothing."""

    def __init__(
        self,
        pool: Pool[Record],
        held: lease.Lease,
        interval: timedelta,
        *,
        on_pass: Callable[[PassT], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._held = held
        self._interval = interval
        self._on_pass = on_pass

    async def run(self) -> None:
        """Pass after pass until cancelled. Raises `LeaseLost` when another coordinator leads."""
        async for pace in Pace(self._interval):
            done = await self.run_once()
            if self._is_full(done):
                pace.wake()
            self._on_pass(done)

    @abstractmethod
    async def run_once(self) -> PassT: ...

    def _is_full(self, done: PassT) -> bool:
        """Whether the pass took as much as one may, so that the next one comes without a pause."""
        return False

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Db]:
        """One in which this coordinator leads to its end, or `LeaseLost`."""
        async with self._pool.acquire() as db, db.transaction():
            await lease.guard(db, self._held)
            yield db
