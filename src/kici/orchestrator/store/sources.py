"""Who may send webhooks. GitHub's stand in `sources`, all others in `generic_webhook_sources`; no name is in both."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from asyncpg import Record
from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import ORG

INTERNAL: Final = "internal"


class StoredSource(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    provider: str
    """`github`, `generic` or `internal`"""
    routing_key: str
    enabled: bool
    created_at: datetime
    verification_method: str = "hmac_sha256"
    header_name: str = ""
    event_type_header: str = ""
    event_type_path: str = ""
    delivery_id_header: str = ""
    clone_url: str = ""
    max_payload_bytes: int = 0
    """0 = the forge's own limit."""
    rate_limit_rpm: int = 0
    """0 = no limit."""
    allowed_events: list[str] = []
    """Empty = all."""
    strip_headers: list[str] = []


class NewSource(Struct, frozen=True, kw_only=True):
    name: str
    provider: str
    verification_method: str = "hmac_sha256"
    header_name: str = ""
    event_type_header: str = ""
    event_type_path: str = ""
    max_payload_bytes: int = 0
    allowed_events: list[str] = []
    clone_url: str = ""


async def all_live(db: Db) -> list[StoredSource]:
    """Sources that are not deleted, by name; disabled ones too."""
    rows = await db.fetch(
        """
        select id, name, provider, routing_key, true as enabled, created_at,
               coalesce(config ->> 'cloneUrl', '') as clone_url,
               coalesce((config ->> 'maxPayloadBytes')::integer, 0) as max_payload_bytes,
               coalesce(config -> 'allowedEvents', '[]') as allowed_events
          from sources
         where customer_id = $1
         order by name
        """,
        ORG,
    )
    generic = await db.fetch(
        """
        select id, name, provider_type as provider, routing_key, enabled, created_at, verification_method,
               coalesce(verification_config ->> 'headerName', '') as header_name,
               coalesce(event_type_header, '') as event_type_header,
               coalesce(event_type_path, '') as event_type_path,
               coalesce(idempotency_key_header, '') as delivery_id_header,
               coalesce(git_config ->> 'cloneUrl', '') as clone_url,
               max_payload_bytes, rate_limit_rpm, coalesce(allowed_events, '[]') as allowed_events, strip_headers
          from generic_webhook_sources
         where customer_id = $1 and deleted_at is null
         order by name
        """,
        ORG,
    )
    return [StoredSource(**row) for row in (*rows, *generic)]


async def create(db: Db, new: NewSource) -> StoredSource | None:
    """None if the name is taken. One creation at a time, until the transaction ends: no index spans the two tables."""
    await db.execute("select pg_advisory_xact_lock(hashtext('kici:sources'))")
    if await find(db, new.name) is not None:
        return None
    if new.provider == "github":
        await db.execute(
            """
            insert into sources (provider, name, routing_key, config, customer_id)
            values ('github', $1::text, 'github:' || $1::text, $2, $3)
            """,
            new.name,
            {
                "cloneUrl": new.clone_url,
                "maxPayloadBytes": new.max_payload_bytes,
                "allowedEvents": new.allowed_events,
            },
            ORG,
        )
    else:
        await db.execute(
            """
            insert into generic_webhook_sources as s
                   (id, customer_id, name, routing_key, verification_method, verification_config, event_type_header,
                    event_type_path, allowed_events, provider_type, max_payload_bytes, git_config)
            select id, $1::text, $2::text, 'generic:' || $1::text || ':' || id, $3, $4, nullif($5, ''), nullif($6, ''),
                   $7, $8, $9, $10
              from (select gen_random_uuid() as id) as made
            """,
            ORG,
            new.name,
            new.verification_method,
            {"headerName": new.header_name},
            new.event_type_header,
            new.event_type_path,
            new.allowed_events,
            new.provider,
            new.max_payload_bytes,
            {"cloneUrl": new.clone_url} if new.clone_url else None,
        )
    return await find(db, new.name)


async def find(db: Db, name: str) -> StoredSource | None:
    """By name, routing key or id."""
    return next((found for found in await all_live(db) if name in (found.name, found.routing_key, found.id)), None)


async def delete(db: Db, source: StoredSource) -> bool:
    """GitHub's go; the others stay as deleted rows, because deliveries name them. False if it is gone already."""
    if source.provider == "github":
        gone: Record | None = await db.fetchrow("delete from sources where id = $1 returning id", source.id)
    else:
        gone = await db.fetchrow(
            """
            update generic_webhook_sources set deleted_at = now(), updated_at = now()
             where id = $1 and deleted_at is null
            returning id
            """,
            source.id,
        )
    return gone is not None
