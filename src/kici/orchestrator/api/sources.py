"""`/api/v1/admin/sources`: who may send webhooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from asyncpg import Pool, Record
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from kici.orchestrator.errors import Conflict, Invalid, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.intake.sources import CLONE_TOKEN, WEBHOOK_SECRET, Sources, scope_of
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import database, sources
from kici.orchestrator.store.events import ORG
from kici.orchestrator.store.notify import SOURCES, Notifier
from kici.orchestrator.store.sources import INTERNAL, NewSource, StoredSource
from kici.wire.api import Source, SourceAnswer, SourceCreate, SourceList

PATH: Final = "/api/v1/admin/sources"

_METHODS = ("hmac_sha256", "api_key")
_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_HEADER = re.compile(r"\A[A-Za-z0-9-]{0,100}\Z")


def routes(
    access: Access,
    pool: Pool[Record],
    secrets: ScopedSecrets,
    known: Sources,
    notifier: Notifier,
    *,
    public_url: Callable[[], str],
) -> list[HTTPRouteHandler]:
    """`public_url`: base of the webhook URLs, without a slash at its end."""

    def shown(source: StoredSource) -> Source:
        return Source(
            id=source.id,
            name=source.name,
            provider=source.provider,
            routing_key=source.routing_key,
            enabled=source.enabled,
            webhook_url=f"{public_url()}{_webhook_path(source)}",
            verification_method=source.verification_method,
            created_at=source.created_at,
        )

    @post(PATH, guards=[access.guard("source.manage")], summary="Add a source")
    async def create_source(data: JSONBody[SourceCreate]) -> SourceAnswer:
        """Its secrets are stored encrypted and never shown again."""
        new = _checked(data)
        async with database.transaction(pool) as db:
            source = await sources.create(db, new)
            if source is None:
                raise Conflict(f"there is a source {data.name!r} already: remove it first, or take another name")
            await secrets.put(db, SYSTEM, scope_of(source.id), WEBHOOK_SECRET, data.secret)
            if data.clone_token:
                await secrets.put(db, SYSTEM, scope_of(source.id), CLONE_TOKEN, data.clone_token)
        await changed(source)
        return SourceAnswer(shown(source))

    @get(PATH, guards=[access.guard("source.read")], summary="List the sources")
    async def list_sources() -> SourceList:
        async with database.transaction(pool) as db:
            return SourceList([shown(source) for source in await sources.all_live(db)])

    @delete(PATH + "/{source:str}", guards=[access.guard("source.manage")], summary="Remove a source")
    async def delete_source(source: FromPath[str]) -> None:
        """By name, routing key or id. What it has delivered stays in the event log."""
        async with database.transaction(pool) as db:
            found = await sources.find(db, source)
            if found is None:
                raise NotFound(f"there is no source {source!r}")
            if found.provider == INTERNAL:
                raise Conflict(f"the source {found.name!r} belongs to this orchestrator's own repository and stays")
            await sources.delete(db, found)
            await secrets.delete_scope(db, SYSTEM, scope_of(found.id))
        await changed(found)

    async def changed(source: StoredSource) -> None:
        """Known here when the answer goes out, and on the other coordinators a moment later."""
        notifier.send(SOURCES, source.routing_key)
        await known.load()

    return [create_source, list_sources, delete_source]


def _webhook_path(source: StoredSource) -> str:
    if source.provider == INTERNAL:
        return f"/webhook/{source.name}"
    return f"/webhook/{ORG}/{source.provider}/{source.name}"


def _checked(data: SourceCreate) -> NewSource:
    """Raises `Invalid` with the field and what it may be."""
    if not _NAME.match(data.name):
        raise Invalid("name: 1 to 63 letters, digits, dots, dashes and underscores, the first a letter or a digit")
    if data.provider not in ("github", "generic"):
        raise Invalid(f"provider: 'github' or 'generic', not {data.provider!r}")
    if not data.secret:
        raise Invalid("secret: it must not be empty, or anybody could deliver")
    if data.verification_method not in _METHODS:
        raise Invalid(f"verificationMethod: one of {', '.join(_METHODS)}, not {data.verification_method!r}")
    if not _HEADER.match(data.header_name) or not _HEADER.match(data.event_type_header):
        raise Invalid("headerName, eventTypeHeader: names of HTTP headers consist of letters, digits and dashes")
    if data.provider == "github" and (
        data.verification_method != "hmac_sha256" or data.header_name or data.event_type_header or data.event_type_path
    ):
        raise Invalid("verificationMethod, headerName, eventTypeHeader, eventTypePath: GitHub's are fixed")
    if data.provider == "generic" and (data.clone_url or data.clone_token):
        raise Invalid("cloneUrl, cloneToken: a generic source has no repository")
    if data.max_payload_bytes < 0:
        raise Invalid("maxPayloadBytes: not below 0 (0 = the provider's limit)")
    return NewSource(
        name=data.name,
        provider=data.provider,
        verification_method=data.verification_method,
        header_name=data.header_name,
        event_type_header=data.event_type_header,
        event_type_path=data.event_type_path,
        max_payload_bytes=data.max_payload_bytes,
        allowed_events=data.allowed_events,
        clone_url=data.clone_url,
    )
