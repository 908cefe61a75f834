"""Deliveries: one row of `event_log` each, whose body stands beside it in `event_payloads` from the same commit."""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import msgspec
from asyncpg import Record
from msgspec import Struct

from kici.orchestrator.errors import NotFound
from kici.orchestrator.store.database import Db

ORG: Final = "default"
"""The only tenant there is for now."""


_json = msgspec.json.Encoder()


class NewEvent(Struct, frozen=True, kw_only=True):
    """A delivery that was verified. `id` comes from `new_id`."""

    id: str
    delivery_id: str
    """Unique for ever, so it begins with the routing key of its source."""
    routing_key: str
    event: str
    action: str
    provider: str
    headers: dict[str, str]
    repo: str
    ref: str
    content_type: str
    size: int
    sha256: str
    body: bytes = b""
    """Of `insert_batch` only."""


class StoredEvent(Struct, frozen=True):
    """What a forge needs to normalize a delivery."""

    id: str
    delivery_id: str
    routing_key: str
    event: str
    provider: str
    headers: dict[str, str]
    body: bytes


def new_id() -> str:
    """A UUID of version 7: rows that arrive together lie together, so a checkpoint makes fewer pages hot again."""
    time_part = f"{time.time_ns() // 1_000_000:012x}"
    random_part = os.urandom(10).hex()
    variant = "89ab"[int(random_part[3], 16) & 3]
    return f"{time_part[:8]}-{time_part[8:]}-7{random_part[:3]}-{variant}{random_part[4:7]}-{random_part[7:19]}"


async def insert_batch(db: Db, events: Sequence[NewEvent]) -> list[bool]:
    """Store deliveries with their bodies in one statement. False for each that is there already, also within the batch.

    A delivery that another transaction is inserting is waited for, so the answer is final. Rows go in by delivery id,
    so that two coordinators that got the same deliveries do not wait for each other in a circle. Ids and headers travel
    as text: the codecs of the pool are Python, and this is the hottest statement there is.
    """
    rows = await db.fetch(
        """
        with logged as (
          insert into event_log (id, org_id, delivery_id, routing_key, event, action, source, provider, headers,
                                 repo_identifier, ref, payload_size_bytes, payload_hash)
          select id::uuid, $12, delivery_id, routing_key, event, nullif(action, ''), 'direct', provider, headers::jsonb,
                 nullif(repo, ''), nullif(ref, ''), size, sha256
            from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                        $8::text[], $9::text[], $10::integer[], $11::text[])
              as new (id, delivery_id, routing_key, event, action, provider, headers, repo, ref, size, sha256)
           order by delivery_id
              on conflict (org_id, delivery_id) do nothing
          returning id
        ), kept as (
          insert into event_payloads (event_id, content_type, body)
          select logged.id, new.content_type, new.body
            from unnest($1::text[], $13::text[], $14::bytea[]) as new (id, content_type, body)
            join logged on logged.id = new.id::uuid
        )
        select id::text from logged
        """,
        [event.id for event in events],
        [event.delivery_id for event in events],
        [event.routing_key for event in events],
        [event.event for event in events],
        [event.action for event in events],
        [event.provider for event in events],
        [_json.encode(event.headers).decode() for event in events],
        [event.repo for event in events],
        [event.ref for event in events],
        [event.size for event in events],
        [event.sha256 for event in events],
        ORG,
        [event.content_type for event in events],
        [event.body for event in events],
    )
    stored = {row["id"] for row in rows}
    return [event.id in stored for event in events]


async def insert_streamed(db: Db, event: NewEvent, body: Iterable[memoryview]) -> bool:
    """The same for one delivery whose body is too large to be held, let alone copied: it goes by COPY, piece by piece.

    The caller's transaction makes the two statements one.
    """
    inserted = await db.fetchval(
        """
        insert into event_log (id, org_id, delivery_id, routing_key, event, action, source, provider, headers,
                               repo_identifier, ref, payload_size_bytes, payload_hash)
        values ($1, $2, $3, $4, $5, nullif($6, ''), 'direct', $7, $8, nullif($9, ''), nullif($10, ''), $11, $12)
            on conflict (org_id, delivery_id) do nothing
        returning true
        """,
        event.id,
        ORG,
        event.delivery_id,
        event.routing_key,
        event.event,
        event.action,
        event.provider,
        event.headers,
        event.repo,
        event.ref,
        event.size,
        event.sha256,
    )
    if not inserted:
        return False
    await db.copy_to_table(
        "event_payloads",
        source=_one_row(event, body),
        columns=["event_id", "content_type", "body"],
        format="binary",
    )
    return True


async def _one_row(event: NewEvent, body: Iterable[memoryview]) -> AsyncIterator[bytes]:
    """PostgreSQL's binary COPY format: header, one row of three fields, trailer."""
    content_type = event.content_type.encode()
    yield b"".join(
        (
            b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0),
            struct.pack("!h", 3),
            struct.pack("!i", 16) + uuid.UUID(event.id).bytes,
            struct.pack("!i", len(content_type)) + content_type,
            struct.pack("!i", event.size),
        )
    )
    for piece in body:
        yield bytes(piece)
    yield struct.pack("!h", -1)


async def read(db: Db, event_id: str) -> StoredEvent:
    """A delivery with its body. Raises `NotFound`, also if the body is no longer in the database."""
    row: Record | None = await db.fetchrow(
        """
        select e.id, e.delivery_id, e.routing_key, e.event, e.provider, e.headers, p.body
          from event_log e
          join event_payloads p on p.event_id = e.id
         where e.id = $1
        """,
        event_id,
    )
    if row is None:
        raise NotFound(f"there is no delivery {event_id} with a body in the database")
    return StoredEvent(**row)
