"""The shape of what ends rows and, when nobody reads their objects any more, removes these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True, kw_only=True):
    interval: timedelta = timedelta(minutes=1)
    batch: int = 100
    """How many one pass ends, and how many it removes; one that did as much is followed by the next at once."""


class Pass(Struct, frozen=True):
    expired: int
    """Rows that ended; more than a batch where several name the same objects."""
    gone: int
    """Leftovers that are forgotten."""


class Leftover(Protocol):
    """Ended long enough ago."""

    @property
    def object_key(self) -> str: ...
    @property
    def part_bytes(self) -> int | None: ...


class RemovesParts(Protocol):
    async def remove(self, object_key: str, part_bytes: int | None) -> None:
        """Raises `Unavailable` when the store cannot be reached."""


SettingsT = TypeVar("SettingsT", bound=Settings)
LeftoverT = TypeVar("LeftoverT", bound=Leftover)


class SweepObjects(LeaderService[Pass], Generic[SettingsT, LeftoverT]):
    """Leader-only. Objects go before their rows do: stopped in between, the next pass does it again."""

    def __init__(
        self,
        pool: Pool[Record],
        held: Lease,
        stored: RemovesParts,
        settings: SettingsT,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        super().__init__(pool, held, settings.interval, on_pass=on_pass)
        self._stored = stored
        self._settings = settings

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            expired = await self._expire(db)
            found = await self._leftovers(db)
        gone = await self._remove_all(found)
        if gone:
            async with self._transaction() as db:
                await self._forget(db, gone)
        done = Pass(expired, len(gone))
        self._tell(done)
        return done

    @abstractmethod
    async def _expire(self, db: Db) -> int:
        """End at most a batch of what is past its time. Returns how many rows."""

    @abstractmethod
    async def _leftovers(self, db: Db) -> Sequence[LeftoverT]:
        """At most a batch, the oldest first."""

    @abstractmethod
    async def _forget(self, db: Db, gone: Sequence[LeftoverT]) -> None:
        """These have no objects any more: they are not to be found again."""

    @abstractmethod
    def _tell(self, done: Pass) -> None:
        """In metrics and in the log."""

    async def _remove(self, one: LeftoverT) -> None:
        """Its objects. Raises `Unavailable`."""
        await self._stored.remove(one.object_key, one.part_bytes)

    async def _remove_all(self, found: Sequence[LeftoverT]) -> Sequence[LeftoverT]:
        """Those that are gone: all before the first at which the store was away."""
        for number, one in enumerate(found):
            try:
                await self._remove(one)
            except Unavailable as error:
                log.warning("objects stay, the object store is away", sweep=type(self).__name__, error=str(error))
                return found[:number]
        return found

    def _is_full(self, done: Pass) -> bool:
        return max(done.expired, done.gone) >= self._settings.batch
