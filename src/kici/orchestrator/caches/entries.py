"""Caches of jobs: entries that are found by key or by the beginning of a key, and never change.

An entry belongs to a repository, as it is reached through one source, and there to the scope of a branch, tag or pull
request (`scopes`). It is written down before its object is, and found only after a row that is fenced by the attempt
says so: a save that breaks off anywhere leaves nothing but work for the sweeper.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import metrics, scopes
from kici.orchestrator.caches.meter import Meter, OverLimit
from kici.orchestrator.errors import AttemptOver, Invalid, OrchestratorError, TooLarge
from kici.orchestrator.objects import keys
from kici.orchestrator.objects.contract import ObjectNotFound, Objects
from kici.orchestrator.store import caches, origins
from kici.orchestrator.store.caches import Entry, NewEntry, Owner
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.origins import Origin

log = structlog.get_logger(__name__)

MAX_KEY_CHARS = 512
MAX_PREFIXES = 20


class Limits(Struct, frozen=True):
    quota_bytes: int = 5 * 1024**3
    """Of a repository; also of one entry."""
    ttl: timedelta = timedelta(days=7)
    """Since an entry was last found."""


class Saved(Struct, frozen=True):
    kept: bool
    reason: str = ""
    """Why not, in words: the key is taken, or there is no room."""


class Caches:
    def __init__(self, pool: Pool[Record], objects: Objects, limits: Limits) -> None:
        self._pool = pool
        self._objects = objects
        self._limits = limits

    async def find(self, job_id: str, attempt: int, key: str, prefixes: Sequence[str] = ()) -> Entry | None:
        """The entry of this key, else the newest of the first prefix that finds one; of each the nearest scope's.

        Raises `Invalid` or `AttemptOver`.
        """
        _check_key(key, "key")
        if len(prefixes) > MAX_PREFIXES:
            raise Invalid(f"restore: up to {MAX_PREFIXES} prefixes")
        for prefix in prefixes:
            _check_key(prefix, "restore")
        async with transaction(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            found = await self._find(db, origin, key, prefixes)
            if found is not None:
                await caches.touch(db, found.id)
        metrics.FINDS.labels("miss" if found is None else "hit" if found.key == key else "prefix").inc()
        return found

    async def knows(self, job_id: str, attempt: int, key: str) -> bool:
        """Whether a save of this key would be for nothing."""
        _check_key(key, "key")
        async with transaction(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            return await self._knows(db, origin, key)

    def read(self, entry: Entry) -> AsyncIterator[bytes]:
        return self._objects.read(entry.object_key)

    async def lost(self, entry: Entry) -> None:
        """Its object is not there: nobody is to find it again."""
        log.warning("the object of a cache entry is not there", entry=entry.id, key=entry.key)
        await self._drop(entry.id)

    async def is_damaged(self, job_id: str, attempt: int, entry_id: str) -> bool:
        """Reads the object of an entry that this job may find; a damaged one is not found any more.

        The word of the agent is not enough: what broke may have been the way to it. Raises `AttemptOver` or
        `Unavailable`.
        """
        async with transaction(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            entry = await caches.ready(db, _owner(origin), scopes.readable(origin.event), entry_id)
        if entry is None:
            return True  # it has gone already, by another job's question for example
        digest = hashlib.sha256()
        try:
            async for piece in self.read(entry):
                digest.update(piece)
        except ObjectNotFound:
            pass
        else:
            if digest.hexdigest() == entry.sha256:
                return False
        log.error("a cache entry is damaged in the object store: removed", entry=entry.id, key=entry.key)
        metrics.DAMAGED.inc()
        await self._drop(entry.id)
        return True

    async def save(self, job_id: str, attempt: int, key: str, data: AsyncIterable[bytes]) -> Saved:
        """Keep what the current attempt of a job made, whole or not at all. The first one to save a key wins.

        Raises `Invalid` (key), `TooLarge` or `AttemptOver`.
        """
        _check_key(key, "key")
        async with transaction(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            if await self._knows(db, origin, key):
                return _counted(Saved(False, _TAKEN))
            entry = _new_entry(origin, key)
            await caches.announce(db, entry)
        meter = Meter(data, self._limits.quota_bytes)
        saved = Saved(False)
        try:
            await self._objects.put(entry.object_key, meter)
            async with transaction(self._pool) as db:
                saved = await self._publish(db, entry, attempt, meter)
        except OverLimit:
            raise TooLarge(f"the cache entry {key!r} is larger than {self._limits.quota_bytes:,} bytes") from None
        finally:
            if not saved.kept:
                await self._drop(entry.id)
        return _counted(saved)

    async def _publish(self, db: Db, entry: NewEntry, attempt: int, meter: Meter) -> Saved:
        origin = await origins.hold(db, entry.job_id, attempt)
        if origin is None:
            raise AttemptOver(f"the cache entry {entry.key!r} was not kept: attempt {attempt} of this job is over")
        await caches.lock(db, entry.owner)
        if await self._is_taken(db, entry):
            return Saved(False, _TAKEN)
        usage, quota = await caches.usage(db, entry.owner), self._limits.quota_bytes
        if not origin.trusted and usage.trusted + meter.size > quota:
            return Saved(False, "what the repository itself keeps leaves no room for it")
        excess = usage.total + meter.size - quota
        if excess > 0:
            evicted = await caches.evict(db, entry.owner, excess, trusted=origin.trusted)
            metrics.EVICTED.inc(evicted)
            log.info("cache entries made room", repository=entry.owner.repository, entries=evicted)
        if not await caches.publish(db, entry.id, meter.size, meter.digest.hexdigest()):
            return Saved(False, "it took too long")
        return Saved(True)

    async def _is_taken(self, db: Db, entry: NewEntry) -> bool:
        """One that nobody may find any more gives way."""
        found = await caches.find(db, entry.owner, [entry.scope], entry.key, timedelta(days=36_500))
        if found is None:
            return False
        if await caches.find(db, entry.owner, [entry.scope], entry.key, self._limits.ttl) is not None:
            return True
        await caches.drop(db, found.id)
        return False

    async def _knows(self, db: Db, origin: Origin, key: str) -> bool:
        own = [scopes.written(origin.event)]
        return await caches.find(db, _owner(origin), own, key, self._limits.ttl) is not None

    async def _find(self, db: Db, origin: Origin, key: str, prefixes: Sequence[str]) -> Entry | None:
        owner, readable, ttl = _owner(origin), scopes.readable(origin.event), self._limits.ttl
        found = await caches.find(db, owner, readable, key, ttl)
        for prefix in prefixes:
            found = found or await caches.newest(db, owner, readable, prefix, ttl)
        return found

    async def _origin(self, db: Db, job_id: str, attempt: int) -> Origin:
        origin = await origins.find(db, job_id, attempt)
        if origin is None:
            raise AttemptOver(f"attempt {attempt} of this job is over")
        return origin

    async def _drop(self, entry_id: str) -> None:
        """What cannot be dropped now is found by the sweeper in a day."""
        try:
            async with transaction(self._pool) as db:
                await caches.drop(db, entry_id)
        except OrchestratorError as error:
            log.warning("a cache entry that is of no use could not be dropped", entry=entry_id, error=str(error))


_TAKEN = "there is an entry of that key already"


def _owner(origin: Origin) -> Owner:
    return Owner(origin.routing_key, origin.repository)


def _new_entry(origin: Origin, key: str) -> NewEntry:
    entry_id = str(uuid.uuid4())
    scope = scopes.written(origin.event)
    return NewEntry(entry_id, _owner(origin), scope, key, keys.cache(entry_id), origin.run_id, origin.job_id)


def _check_key(key: str, what: str) -> None:
    if not key.strip() or len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise Invalid(f"{what}: {key[:100]!r} is no key of a cache: write 1 to {MAX_KEY_CHARS} printable characters")


def _counted(saved: Saved) -> Saved:
    metrics.SAVES.labels("kept" if saved.kept else "taken" if saved.reason == _TAKEN else "refused").inc()
    return saved
