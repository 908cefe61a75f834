"""Upload sessions: how an attempt sends an artifact or a cache entry.

It begins one, sends the parts, by signed addresses or through the orchestrator, in any order and as often as it must,
and completes it. Only then, in a transaction that is fenced by the attempt, does a row make them visible. The objects
of every session are its own, so that a part that arrives late, from whomever, touches nothing else.

A signed address is no fence: until it has run out (`URL_LASTS`), its holder can write the part again, also after it
was published. Readers compare what comes with the SHA-256 of the whole, and an entry that differs is removed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterable
from datetime import timedelta
from typing import Final, Protocol

import msgspec
import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.caches import parts
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.errors import AttemptOver, Conflict, Invalid, NotFound, OrchestratorError, TooLarge
from kici.orchestrator.store import origins, uploads
from kici.orchestrator.store.database import Db, connection, transaction
from kici.orchestrator.store.origins import Origin
from kici.orchestrator.store.uploads import OPEN, OVER, PUBLISHED, Upload

log = structlog.get_logger(__name__)

LASTS: Final = timedelta(days=1)
"""No upload takes that long."""
MAX_UNPUBLISHED: Final = 100
"""Sessions of a job that are open, or whose objects have still to be removed."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Outcome(Struct, frozen=True):
    kept: bool
    reason: str = ""
    """Why not, in words."""
    published: bool = True
    """What was sent is what is kept: false where the same was there already."""


class Room(Struct, frozen=True):
    bytes: int
    full: str
    """What is said where they are too few: the limit, what is used, the way out."""


class Kind(Protocol):
    """Artifacts or caches."""

    name: str
    max_bytes: int

    def check(self, name: str) -> None:
        """Raises `Invalid` for a name that is none."""

    async def refusal(self, db: Db, origin: Origin, name: str) -> str:
        """Why sending it would be for nothing; empty = it would not. May raise what refuses it."""

    async def room(self, db: Db, upload: Upload) -> Room:
        """What may still be sent, beside what was granted, by it or others."""

    def object_key(self, origin: Origin, name: str, upload_id: str) -> str: ...

    async def publish(self, db: Db, upload: Upload, size: int, sha256: str) -> Outcome:
        """Make it visible, in the caller's transaction, if the attempt is the job's current one. Raises
        `AttemptOver`."""

    def too_large(self, name: str) -> TooLarge: ...

    def ended(self, outcome: Outcome) -> None:
        """Raises what the caller is told of an outcome that is none of its answers; counts it."""


class Begun(Struct, frozen=True):
    upload: Upload | None
    reason: str = ""
    """Why there is none."""


class Uploads:
    def __init__(
        self, pool: Pool[Record], stored: Parts, kinds: list[Kind], *, part_bytes: int = parts.PART_BYTES
    ) -> None:
        self._pool = pool
        self._parts = stored
        self._kinds = {kind.name: kind for kind in kinds}
        self._part_bytes = part_bytes

    async def begin(self, job_id: str, attempt: int, kind: str, name: str) -> Begun:
        """Raises `Invalid` (name), `AttemptOver`, or `Conflict`."""
        of = self._kinds[kind]
        of.check(name)
        async with transaction(self._pool) as db:
            origin = await origins.find(db, job_id, attempt)
            if origin is None:
                raise AttemptOver(f"attempt {attempt} of this job is over")
            reason = await of.refusal(db, origin, name)
            if reason:
                return Begun(None, reason)
            if await uploads.unpublished(db, job_id) >= MAX_UNPUBLISHED:
                raise Conflict(
                    f"this job has begun {MAX_UNPUBLISHED} uploads that it has not completed: what they left is removed"
                    " within hours"
                )
            upload_id = str(uuid.uuid4())
            key = of.object_key(origin, name, upload_id)
            upload = Upload(
                upload_id,
                origin.run_id,
                job_id,
                attempt,
                kind,
                name,
                key,
                self._part_bytes,
                routing_key=origin.routing_key,
                repository=origin.repository,
                pull_request=origin.pull_request,
            )
            granted = await self._grantable(db, upload, parts.URLS_AT_FIRST)
            upload = msgspec.structs.replace(upload, granted_parts=granted)
            await uploads.begin(db, upload, LASTS)
        return Begun(upload)

    async def urls(self, job_id: str, attempt: int, upload_id: str, first: int, count: int) -> list[str | None]:
        """Of parts from `first`: each a signed address for a PUT, or None, then it is sent here. Raises
        `Conflict` if there is no room for any."""
        upload = await self._open(job_id, attempt, upload_id)
        self._check_number(upload, first)
        wanted = first + min(count, parts.URLS_AT_ONCE)
        granted = await self._granted(upload, first, wanted)
        return await self._parts.urls("PUT", upload.object_key, range(first, min(wanted, granted)))

    async def put(self, job_id: str, attempt: int, upload_id: str, number: int, data: AsyncIterable[bytes]) -> None:
        """Store one part; sent again it is replaced. Raises `TooLarge`, `Invalid`, `Unavailable`, or
        `Conflict`: there is no room for it."""
        upload = await self._open(job_id, attempt, upload_id)
        self._check_number(upload, number)
        await self._granted(upload, number, number + parts.URLS_AT_ONCE)
        await self._parts.put(upload.object_key, number, data, upload.part_bytes)

    async def complete(self, job_id: str, attempt: int, upload_id: str, size: int, sha256: str, count: int) -> Outcome:
        """Publish what was sent, whole or not at all. Asked twice, it answers twice the same.

        Raises `Invalid` (a part is missing or has another length: the session stays open), `TooLarge`, `AttemptOver`.
        """
        upload = await self._find(job_id, attempt, upload_id)
        kind = self._kinds[upload.kind]
        if upload.state == OPEN:
            if not _SHA256.fullmatch(sha256):
                raise Invalid("sha256: 64 hexadecimal digits are needed")
            if size > kind.max_bytes:
                raise kind.too_large(upload.name)
            if size < 0 or count != parts.count(size, upload.part_bytes):
                raise Invalid(f"{size:,} bytes do not lie in {count:,} parts of {upload.part_bytes:,} bytes")
            await self._parts.check(upload.object_key, size, upload.part_bytes)
        try:
            outcome = await self._publish(kind, upload, size, sha256)
        except AttemptOver as error:
            await self._end(upload_id, str(error))
            raise
        kind.ended(outcome)
        return outcome

    async def abandon(self, job_id: str, attempt: int, upload_id: str) -> None:
        """What was sent goes. One that is closed already stays as it is."""
        await self._find(job_id, attempt, upload_id)
        await self._end(upload_id, "it was given up")

    async def _publish(self, kind: Kind, upload: Upload, size: int, sha256: str) -> Outcome:
        async with transaction(self._pool) as db:
            held = await uploads.hold(db, upload.id, upload.job_id, upload.attempt)
            if held is None:
                raise _unknown(upload.id)
            if held.state != OPEN:
                return Outcome(not held.reason, held.reason, held.state == PUBLISHED)
            outcome = await kind.publish(db, held, size, sha256)
            state = PUBLISHED if outcome.kept and outcome.published else OVER
            await uploads.end(db, held.id, state, outcome.reason, parts.STALE_AFTER)
        return outcome

    async def _open(self, job_id: str, attempt: int, upload_id: str) -> Upload:
        upload = await self._find(job_id, attempt, upload_id)
        if upload.state != OPEN:
            raise _closed(upload)
        return upload

    async def _find(self, job_id: str, attempt: int, upload_id: str) -> Upload:
        async with connection(self._pool) as db:
            found = await uploads.find(db, upload_id, job_id, attempt)
        if found is None:
            raise _unknown(upload_id)
        return found

    def _check_number(self, upload: Upload, number: int) -> None:
        kind = self._kinds[upload.kind]
        if number < 0:
            raise Invalid("parts are numbered from 0")
        if number >= parts.count(kind.max_bytes, upload.part_bytes):
            raise kind.too_large(upload.name)

    async def _granted(self, upload: Upload, number: int, wanted: int) -> int:
        """How many parts it may send: more than `number`, or raises `Conflict`. If it has to be asked for more it is
        asked for `wanted`."""
        if number < upload.granted_parts:
            return upload.granted_parts
        async with transaction(self._pool) as db:
            held = await uploads.hold(db, upload.id, upload.job_id, upload.attempt)
            if held is None or held.state != OPEN:
                raise _closed(held or upload)
            if number < held.granted_parts:
                return held.granted_parts
            granted = await self._grantable(db, held, wanted)
            if granted <= number:
                raise Conflict(f"part {number} of {upload.name!r} was refused: the parts before it take all room")
            await uploads.grant(db, held.id, granted)
        return granted

    async def _grantable(self, db: Db, upload: Upload, wanted: int) -> int:
        """Parts that it may send, `wanted` or fewer. Raises `Conflict` if that is not one more than it may already."""
        kind = self._kinds[upload.kind]
        most = parts.count(kind.max_bytes, upload.part_bytes)
        room = await kind.room(db, upload)
        if room.bytes <= 0:
            raise Conflict(f"{kind.name} {upload.name!r} was refused: {room.full}")
        return min(wanted, most, upload.granted_parts + parts.count(room.bytes, upload.part_bytes))

    async def _end(self, upload_id: str, reason: str) -> None:
        try:
            async with transaction(self._pool) as db:
                await uploads.end(db, upload_id, OVER, reason, parts.STALE_AFTER)
        except OrchestratorError as error:  # the sweeper ends it in a day
            log.warning("an upload could not be closed", upload=upload_id, error=str(error))


def _closed(upload: Upload) -> Conflict:
    return Conflict(f"this upload is closed: {upload.reason or 'it was completed'}")


def _unknown(upload_id: str) -> NotFound:
    return NotFound(f"this attempt has no upload {upload_id}: begin a new one")
