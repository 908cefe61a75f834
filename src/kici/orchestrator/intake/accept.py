"""From a body that was read to a committed row."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from typing import Final

from asyncpg import Pool, Record
from msgspec import Struct

from kici.forges.contract import Headers, Identity
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.intake.body import Body
from kici.orchestrator.intake.errors import Misconfigured, RateLimited
from kici.orchestrator.intake.event_writer import EventWriter
from kici.orchestrator.intake.sources import KnownSource
from kici.orchestrator.store import database, events
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.notify import EVENTS, Notifier

COMMIT_S: Final = 0.8
"""With the rest of a request this stays under a second, after which a sender without an answer is told to try again."""
_STREAM_S: Final = 20.0
_THREAD_ABOVE: Final = 256 * 1024
_ID_LENGTH: Final = 200
_TEXT_LENGTH: Final = 1000
_STREAMS: Final = 2


class Accepted(Struct, frozen=True):
    delivery_id: str


class Duplicate(Struct, frozen=True):
    """The delivery was accepted before, so the sender is done."""

    delivery_id: str


class Filtered(Struct, frozen=True):
    """The source does not want this event: verified, not stored."""

    reason: str


Outcome = Accepted | Duplicate | Filtered


class Intake:
    """Small deliveries share commits. A spooled one has a transaction of its own, and at most two of them at a time, so
    that large bodies cannot use up the pool.
    """

    def __init__(self, pool: Pool[Record], notifier: Notifier) -> None:
        self._pool = pool
        self._notifier = notifier
        self._writer = EventWriter(pool)
        self._streams = asyncio.Semaphore(_STREAMS)

    async def run(self) -> None:
        await self._writer.run()

    async def verify(self, source: KnownSource, headers: Headers, body: Body) -> None:
        """Raises `BadSignature`."""
        if source.problem:
            raise Misconfigured(source.problem)
        if len(body.data) > _THREAD_ABOVE:
            await asyncio.to_thread(source.forge.verify, headers, body.data, source.secrets, source.view)
        else:
            source.forge.verify(headers, body.data, source.secrets, source.view)

    async def store(self, source: KnownSource, headers: Headers, body: Body) -> Outcome:
        """Commit a delivery that was verified, and wake the pipeline.

        Raises `Unreadable`, `RateLimited` or `Unavailable`. The last means that nothing was promised: the row may still
        become one, and then the sender's next try is the duplicate.
        """
        if source.rate is not None and (wait := source.rate.wait_s(time.monotonic())):
            limit = source.rate.limit
            raise RateLimited(f"the source {source.stored.name!r} may deliver {limit} times a minute", wait)
        if len(body.data) > _THREAD_ABOVE:
            identity, digest = await asyncio.to_thread(_examine, source, headers, body)
        else:
            identity, digest = _examine(source, headers, body)
        if source.allowed_events and identity.event_name not in source.allowed_events:
            return Filtered(f"the source {source.stored.name!r} does not take the event {identity.event_name!r}")
        event = _new_event(source, headers, body, identity, digest)
        inserted = await (self._stream(event, body) if body.spooled else self._commit(event))
        if not inserted:
            return Duplicate(event.delivery_id)
        self._notifier.send(EVENTS)
        return Accepted(event.delivery_id)

    async def _commit(self, event: NewEvent) -> bool:
        try:
            async with asyncio.timeout(COMMIT_S):
                return await self._writer.submit(event)
        except Exception as error:
            raise _away(error) from error

    async def _stream(self, event: NewEvent, body: Body) -> bool:
        try:
            async with asyncio.timeout(COMMIT_S) as patience, self._streams, self._pool.acquire() as db:
                await db.execute("select 1")
                patience.reschedule(asyncio.get_running_loop().time() + _STREAM_S)
                async with db.transaction():
                    return await events.insert_streamed(db, event, body.pieces())
        except Exception as error:
            raise _away(error) from error


def _away(error: Exception) -> Exception:
    if database.is_away(error):
        return Unavailable("the database cannot take the delivery now: send it again")
    return error


def _examine(source: KnownSource, headers: Headers, body: Body) -> tuple[Identity, str]:
    return source.forge.identify(headers, body.data, source.view), hashlib.sha256(body.data).hexdigest()


def _new_event(source: KnownSource, headers: Headers, body: Body, identity: Identity, digest: str) -> NewEvent:
    given = identity.delivery_id or str(uuid.uuid4())
    if len(given) > _ID_LENGTH:
        given = hashlib.sha256(given.encode()).hexdigest()
    return NewEvent(
        id=events.new_id(),
        delivery_id=f"{source.stored.routing_key}:{given}",
        routing_key=source.stored.routing_key,
        event=_text(identity.event_name),
        action=_text(identity.action),
        provider=source.stored.provider,
        headers={name: value for name, value in headers.items() if name not in source.not_stored},
        repo=_text(identity.repo),
        ref=_text(identity.ref),
        content_type=headers.get("content-type", ""),
        size=len(body.data),
        sha256=digest,
        body=body.data if isinstance(body.data, bytes) else b"",
    )


def _text(value: str) -> str:
    """PostgreSQL's text holds no NUL."""
    return value.replace("\0", "")[:_TEXT_LENGTH]
