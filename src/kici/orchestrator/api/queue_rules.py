"""`/api/v1/admin/queue/…`: the queue at a glance, and what operators set for it: pauses, and caps of repositories."""

from __future__ import annotations

from typing import Any

import structlog
from asyncpg import Pool, Record
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from kici.engine.labels import requirement
from kici.orchestrator.dispatch import queue_stats
from kici.orchestrator.errors import Invalid, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store import notify, queue_rules, storable
from kici.orchestrator.store.database import Db, transaction
from kici.wire import api

log = structlog.get_logger(__name__)

SCOPES = ("all", "repository", "label")
MAX_TEXT = 500
MAX_CAP = 1_000_000


def routes(
    pool: Pool[Record], access: Access, notifier: Any, *, default_cap: int | None = None
) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/queue/stats", guards=[access.guard("queue.read")])
    async def stats() -> api.QueueStats:
        """Depths and ages by state, repository and label set; lanes that no agent serves; pauses; caps."""
        async with transaction(pool) as db:
            return await queue_stats.read(db, default_cap=default_cap)

    @get("/api/v1/admin/queue/pauses", guards=[access.guard("queue.read")])
    async def list_pauses() -> api.QueuePauseList:
        async with transaction(pool) as db:
            return await _pauses(db)

    @post("/api/v1/admin/queue/pause", status_code=200, guards=[access.guard("queue.manage")])
    async def pause(data: JSONBody[api.QueuePauseBody], request: Request[Any, Any, Any]) -> api.QueuePauseList:
        """Claim nothing new of everything, a repository, or jobs that want a label. What runs goes on."""
        scope, value = _subject(data)
        async with transaction(pool) as db:
            await queue_rules.pause(db, scope, value, reason=_text(data.reason, "reason"), by=request.user.actor)
            answer = await _pauses(db)
        notifier.send(notify.QUEUE)
        log.info("paused", scope=scope, value=value, by=request.user.actor)
        return answer

    @post("/api/v1/admin/queue/resume", status_code=200, guards=[access.guard("queue.manage")])
    async def resume(data: JSONBody[api.QueuePauseBody], request: Request[Any, Any, Any]) -> api.QueuePauseList:
        """Take one pause back; the others stay. 404 if it was not set."""
        scope, value = _subject(data)
        async with transaction(pool) as db:
            if not await queue_rules.resume(db, scope, value):
                raise NotFound(f"{'the queue' if scope == 'all' else f'{scope} {value}'} is not paused")
            answer = await _pauses(db)
        notifier.send(notify.QUEUE)
        log.info("resumed", scope=scope, value=value, by=request.user.actor)
        return answer

    @get("/api/v1/admin/queue/caps", guards=[access.guard("queue.read")])
    async def list_caps() -> api.RepositoryCapList:
        async with transaction(pool) as db:
            return await _caps(db, default_cap)

    @post("/api/v1/admin/queue/caps", status_code=200, guards=[access.guard("queue.manage")])
    async def cap(data: JSONBody[api.RepositoryCapBody], request: Request[Any, Any, Any]) -> api.RepositoryCapList:
        """Bound how many jobs of a repository run at once, or take its bound away. What runs beyond it goes on."""
        repository = _text(data.repository, "repository")
        if not repository:
            raise Invalid("Validation error: name a repository")
        if data.max_running is not None and not 1 <= data.max_running <= MAX_CAP:
            raise Invalid("Validation error: maxRunning is at least 1; to let nothing run, pause the repository")
        async with transaction(pool) as db:
            if data.max_running is not None:
                await queue_rules.set_cap(db, repository, data.max_running, by=request.user.actor)
            elif not await queue_rules.remove_cap(db, repository):
                raise NotFound(f"repository {repository} has no cap of its own")
            answer = await _caps(db, default_cap)
        notifier.send(notify.QUEUE)
        log.info("capped", repository=repository, max_running=data.max_running, by=request.user.actor)
        return answer

    return [stats, list_pauses, pause, resume, list_caps, cap]


async def _pauses(db: Db) -> api.QueuePauseList:
    return api.QueuePauseList([queue_stats.shown_pause(one) for one in await queue_rules.pauses(db)])


async def _caps(db: Db, default_cap: int | None) -> api.RepositoryCapList:
    return api.RepositoryCapList([queue_stats.shown_cap(one) for one in await queue_rules.caps(db)], default_cap)


def _subject(body: api.QueuePauseBody) -> tuple[str, str]:
    """Scope and value; a short label is spelled out as agents offer it."""
    if body.scope not in SCOPES:
        raise Invalid(f"Validation error: scope is one of {', '.join(SCOPES)}")
    value = _text(body.value, "value")
    if bool(value) == (body.scope == "all"):
        raise Invalid("Validation error: give a value with the scopes repository and label, and none with all")
    if body.scope == "label":
        labels = requirement([value]).labels
        if not labels:
            raise Invalid(f"Validation error: {value!r} is a pattern; name one label")
        value = labels[0]
    return body.scope, value


def _text(value: str, name: str) -> str:
    if len(value) > MAX_TEXT:
        raise Invalid(f"Validation error: {name} is longer than {MAX_TEXT} characters")
    return storable.text(value.strip())
