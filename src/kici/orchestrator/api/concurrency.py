"""`/api/v1/admin/concurrency`: who holds the slots of concurrency groups, who waits, and a way out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import structlog
from asyncpg import Pool, Record
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, JSONBody

from kici.orchestrator.api import parameters
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.concurrency import Group, Slot
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.views import concurrency
from kici.wire import api

log = structlog.get_logger(__name__)

PATH: Final = "/api/v1/admin/concurrency"
MAX_LISTED = 1_000


class Wakes(Protocol):
    def send(self, notifier: Any) -> None: ...


class Released(Protocol):
    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def started(self) -> Sequence[Slot]: ...
    @property
    def wakes(self) -> Wakes: ...


class ReleasesSlots(Protocol):
    """What lifecycle offers. Raises `NotFound` if nobody holds a slot."""

    async def __call__(self, db: Db, group: Group, *, run_id: str | None, by: str) -> Released: ...


def routes(pool: Pool[Record], access: Access, notifier: Any, *, release: ReleasesSlots) -> list[HTTPRouteHandler]:
    @get(PATH, guards=[access.guard("queue.read")], summary="Concurrency groups in use")
    async def list_concurrency(
        group: FromQuery[str | None] = None, repo: FromQuery[str | None] = None, limit: FromQuery[int] = 500
    ) -> api.ConcurrencyList:
        """Groups that somebody holds or waits for; up to `limit` holders and waiters in all."""
        parameters.within(limit, 1, MAX_LISTED, "limit")
        async with transaction(pool) as db:
            return api.ConcurrencyList(await concurrency.listed(db, concurrency.Filter(group, repo), limit))

    @post(
        f"{PATH}/release",
        status_code=200,
        guards=[access.guard("queue.manage")],
        summary="Take slots from their holders",
    )
    async def release_concurrency(
        data: JSONBody[api.ConcurrencyRelease], request: Request[Any, Any, Any]
    ) -> api.ConcurrencyReleased:
        """The holders run on, and hold nothing any more: who waits starts beside them. 404 if nobody holds a slot; 409
        if the name is used in several scopes and none is given."""
        run_id = None if data.run_id is None else parameters.uuid_of(data.run_id, "run")
        async with transaction(pool) as db:
            group = Group(data.scope or await _only_scope(db, data.group), data.group)
            done = await release(db, group, run_id=run_id, by=request.user.actor)
        done.wakes.send(notifier)
        log.warning(
            "released slots of a concurrency group by hand",
            scope=group.scope,
            group=group.name,
            by=request.user.actor,
            runs=[slot.run_id for slot in done.slots],
        )
        return api.ConcurrencyReleased(
            group.scope,
            group.name,
            [api.ConcurrencyRef(slot.run_id, slot.job_id) for slot in done.slots],
            [api.ConcurrencyRef(slot.run_id, slot.job_id) for slot in done.started],
        )

    return [list_concurrency, release_concurrency]


async def _only_scope(db: Db, group: str) -> str:
    scopes = [one.scope for one in await concurrency.listed(db, concurrency.Filter(group), MAX_LISTED)]
    if not scopes:
        raise NotFound(f"nobody holds a slot of the concurrency group {group}")
    if len(scopes) > 1:
        raise Conflict(f"the concurrency group {group} is in use in several scopes, name one: {', '.join(scopes)}")
    return scopes[0]
