"""The sources as intake and the pipeline see them: in memory, secrets decrypted, so that a webhook costs no query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import structlog
from asyncpg import InterfaceError, Pool, PostgresError, Record
from msgspec import Struct

from kici.forges import contract
from kici.forges.contract import Forge
from kici.forges.registry import forge_of
from kici.orchestrator.intake.rate import SlidingWindow
from kici.orchestrator.pace import Pace
from kici.orchestrator.secrets.errors import SecretUnreadable
from kici.orchestrator.secrets.scoped import SYSTEM, ScopedSecrets
from kici.orchestrator.store import database, sources
from kici.orchestrator.store.sources import StoredSource

log = structlog.get_logger(__name__)

WEBHOOK_SECRET: Final = "webhookSecret"  # noqa: S105 — names of secrets
CLONE_TOKEN: Final = "cloneToken"  # noqa: S105


def scope_of(source_id: str) -> str:
    """Where the secrets of a source stand, in the org `SYSTEM`."""
    return f"__source__/{source_id}"


class KnownSource(Struct, frozen=True, eq=False):
    stored: StoredSource
    view: contract.Source
    forge: Forge
    secrets: tuple[bytes, ...]
    clone_token: str
    """Empty = the repository is public, or the orchestrator serves it."""
    body_limit: int
    not_stored: frozenset[str]
    """Headers, in lower case."""
    allowed_events: frozenset[str]
    """Empty = all."""
    rate: SlidingWindow | None
    problem: str = ""
    """Why nothing of this source can be verified; empty = it can."""

    def __repr__(self) -> str:
        return f"KnownSource({self.stored.name!r}, {self.stored.provider!r})"


class Sources:
    """Loaded before the first request, again after each notification, and now and then in case one was missed."""

    def __init__(
        self, pool: Pool[Record], secrets: ScopedSecrets, *, interval: timedelta = timedelta(seconds=30)
    ) -> None:
        self._pool = pool
        self._secrets = secrets
        self._pace = Pace(interval)
        self._one_load = asyncio.Lock()
        self._by_name: dict[str, KnownSource] = {}
        self._by_routing_key: dict[str, KnownSource] = {}
        self.loaded = False

    def by_name(self, name: str) -> KnownSource | None:
        """Only a source that is switched on."""
        found = self._by_name.get(name)
        return found if found is not None and found.stored.enabled else None

    def by_routing_key(self, routing_key: str) -> KnownSource | None:
        """Also a source that is switched off: what it has delivered before still counts."""
        return self._by_routing_key.get(routing_key)

    def of_provider(self, provider: str) -> list[KnownSource]:
        return [known for known in self._by_name.values() if known.stored.provider == provider and known.stored.enabled]

    def changed(self, routing_keys: set[str]) -> None:
        """For `Listener.subscribe(SOURCES, …)`."""
        self._pace.wake()

    async def run(self) -> None:
        async for _ in self._pace:
            try:
                await self.load()
            except (OSError, PostgresError, InterfaceError) as error:
                if not database.is_away(error):
                    raise
                log.warning("the sources could not be read again; those that are known stay", error=str(error))

    async def load(self) -> None:
        """Returns when everything committed before the call is known."""
        async with self._one_load:
            async with self._pool.acquire() as db:
                stored = await sources.all_live(db)
                scopes = [scope_of(source.id) for source in stored]
                secrets = await self._secrets.read_scopes(db, SYSTEM, scopes)
            known = [self._known(source, secrets.get(scope)) for source, scope in zip(stored, scopes, strict=True)]
            for source in known:
                if source.problem:
                    log.error("a source cannot be verified", source=source.stored.name, problem=source.problem)
            self._by_name = {source.stored.name: source for source in known}
            self._by_routing_key = {source.stored.routing_key: source for source in known}
            self.loaded = True

    def _known(self, stored: StoredSource, secrets: object) -> KnownSource:
        values: dict[str, str] = dict(secrets) if isinstance(secrets, dict) else {}
        view = contract.Source(
            name=stored.name,
            provider=stored.provider,
            routing_key=stored.routing_key,
            verification_method=stored.verification_method,
            header_name=stored.header_name,
            event_type_header=stored.event_type_header,
            event_type_path=stored.event_type_path,
            delivery_id_header=stored.delivery_id_header,
            clone_url=stored.clone_url,
        )
        forge = forge_of(stored.provider)
        secret = values.get(WEBHOOK_SECRET, "")
        return KnownSource(
            stored=stored,
            view=view,
            forge=forge,
            secrets=(secret.encode(),) if secret else (),
            clone_token=values.get(CLONE_TOKEN, ""),
            body_limit=min(stored.max_payload_bytes or forge.body_limit, forge.body_limit),
            not_stored=_lower(stored.strip_headers) | forge.credential_headers(view),
            allowed_events=frozenset(stored.allowed_events),
            rate=self._rate(stored),
            problem=_problem(stored, secrets, secret),
        )

    def _rate(self, stored: StoredSource) -> SlidingWindow | None:
        """What a source has used up is not forgotten because something was changed."""
        if not stored.rate_limit_rpm or stored.provider == sources.INTERNAL:
            return None
        before = self._by_routing_key.get(stored.routing_key)
        if before is not None and before.rate is not None and before.rate.limit == stored.rate_limit_rpm:
            return before.rate
        return SlidingWindow(stored.rate_limit_rpm)


def _problem(stored: StoredSource, secrets: object, secret: str) -> str:
    if isinstance(secrets, SecretUnreadable):
        return str(secrets)
    return "" if secret else f"the source {stored.name!r} has no secret: remove it and add it again"


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
