"""Caches of jobs: entries that are found by key or by the beginning of a key, and never change.

An entry belongs to a repository, as it is reached through one source, and there to the scope of a branch, tag or pull
request (`scopes`). `uploads` says how one comes: it is found only after a row that is fenced by the attempt says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import metrics, scopes
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.uploads import Outcome, Room
from kici.orchestrator.errors import AttemptOver, Invalid, NotFound, OrchestratorError, TooLarge
from kici.orchestrator.objects import keys
from kici.orchestrator.store import caches, origins, uploads
from kici.orchestrator.store.caches import Entry, NewEntry, Owner
from kici.orchestrator.store.database import Db, connection, transaction
from kici.orchestrator.store.origins import Origin
from kici.orchestrator.store.uploads import Upload

log = structlog.get_logger(__name__)

MAX_KEY_CHARS = 512
MAX_PREFIXES = 20
UNPUBLISHED_ENTRIES = 2
"""So many entries of the largest size a job may send without one that is kept, but for a few parts of sessions that ask
at the same moment. Honest ones send what another job has just saved under the same key, and the next key."""


class Limits(Struct, frozen=True):
    quota_bytes: int = 5 * 1024**3
    """Of a repository; also of one entry."""
    ttl: timedelta = timedelta(days=7)
    """Since an entry was last found."""


class Caches:
    name = "cache"

    def __init__(self, pool: Pool[Record], stored: Parts, limits: Limits) -> None:
        self._pool = pool
        self.parts = stored
        self._limits = limits
        self.max_bytes = limits.quota_bytes

    # ── for readers ──────────────────────────────────────────────────────────────────────────────────────────────────

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

    async def by_id(self, job_id: str, attempt: int, entry_id: str) -> Entry:
        """One that this attempt has found; also if it has made room since: whoever reads it reads it to its end.

        Raises `NotFound` or `AttemptOver`.
        """
        async with connection(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            found = await caches.by_id(db, _owner(origin), scopes.readable(origin.event), entry_id)
        if found is None:
            raise NotFound(f"there is no cache entry {entry_id} any more")
        return found

    def read(self, entry: Entry) -> AsyncIterator[bytes]:
        return self.parts.read(entry)

    async def lost(self, entry: Entry) -> None:
        """Its object is not there: nobody is to find it again."""
        log.warning("the object of a cache entry is not there", entry=entry.id, key=entry.key)
        await self._drop(entry.id)

    async def is_damaged(self, job_id: str, attempt: int, entry_id: str) -> bool:
        """Reads the object of an entry that this job may find; a damaged one is not found any more.

        The word of the agent is not enough: what broke may have been the way to it. Raises `AttemptOver` or
        `Unavailable`.
        """
        async with connection(self._pool) as db:
            origin = await self._origin(db, job_id, attempt)
            entry = await caches.ready(db, _owner(origin), scopes.readable(origin.event), entry_id)
        if entry is None:
            return True  # it has gone already, by another job's question for example
        if await self.parts.is_sound(entry, entry.sha256):
            return False
        log.error("a cache entry is damaged in the object store: removed", entry=entry.id, key=entry.key)
        metrics.DAMAGED.inc()
        await self._drop(entry.id)
        return True

    # ── as a kind of upload ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self, name: str) -> None:
        _check_key(name, "key")

    async def refusal(self, db: Db, origin: Origin, name: str) -> str:
        own = [scopes.written(origin.event)]
        if await caches.find(db, _owner(origin), own, name, self._limits.ttl) is None:
            return ""
        self.ended(Outcome(False, _TAKEN))
        return _TAKEN

    async def room(self, db: Db, upload: Upload) -> Room:
        """What is published makes room for itself; what is not is bounded for each job."""
        most = UNPUBLISHED_ENTRIES * self.max_bytes
        used = await uploads.sending(db, upload.job_id, self.name)
        return Room(
            most - used,
            f"this job has sent {used:,} bytes of cache entries that were not kept, and may send {most:,}: what was not"
            " kept is removed within hours; operators raise KICI_USER_CACHE_QUOTA_BYTES",
        )

    def object_key(self, origin: Origin, name: str, upload_id: str) -> str:
        return keys.cache(upload_id)

    async def publish(self, db: Db, upload: Upload, size: int, sha256: str) -> Outcome:
        """The first one to save a key wins."""
        origin = await origins.hold(db, upload.job_id, upload.attempt)
        if origin is None:
            raise AttemptOver(
                f"the cache entry {upload.name!r} was not kept: attempt {upload.attempt} of this job is over"
            )
        entry = _new_entry(origin, upload, size, sha256)
        await caches.lock(db, entry.owner)
        if await self._is_taken(db, entry):
            return Outcome(False, _TAKEN)
        usage, quota = await caches.usage(db, entry.owner), self._limits.quota_bytes
        if not origin.trusted and usage.trusted + size > quota:
            return Outcome(False, "what the repository itself keeps leaves no room for it")
        excess = usage.total + size - quota
        if excess > 0:
            evicted = await caches.evict(db, entry.owner, excess, trusted=origin.trusted)
            metrics.EVICTED.inc(evicted)
            log.info("cache entries made room", repository=entry.owner.repository, entries=evicted)
        await caches.publish(db, entry)
        return Outcome(True)

    def too_large(self, name: str) -> TooLarge:
        return TooLarge(f"the cache entry {name!r} is larger than {self.max_bytes:,} bytes")

    def ended(self, outcome: Outcome) -> None:
        metrics.SAVES.labels("kept" if outcome.kept else "taken" if outcome.reason == _TAKEN else "refused").inc()

    async def _is_taken(self, db: Db, entry: NewEntry) -> bool:
        """One that nobody may find any more gives way."""
        found = await caches.find(db, entry.owner, [entry.scope], entry.key, timedelta(days=36_500))
        if found is None:
            return False
        if await caches.find(db, entry.owner, [entry.scope], entry.key, self._limits.ttl) is not None:
            return True
        await caches.drop(db, found.id)
        return False

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


def _new_entry(origin: Origin, upload: Upload, size: int, sha256: str) -> NewEntry:
    return NewEntry(
        upload.id,
        _owner(origin),
        scopes.written(origin.event),
        upload.name,
        upload.object_key,
        origin.run_id,
        origin.job_id,
        size,
        upload.part_bytes,
        sha256,
    )


def _check_key(key: str, what: str) -> None:
    if not key.strip() or len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise Invalid(f"{what}: {key[:100]!r} is no key of a cache: write 1 to {MAX_KEY_CHARS} printable characters")
