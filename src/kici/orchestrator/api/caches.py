"""Caches: agents find entries with the job's token (`uploads` and `downloads` move them); operators list and delete
them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import structlog
from asyncpg import Pool, Record
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from kici.orchestrator.api import parameters, permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.api.downloads import described
from kici.orchestrator.caches.entries import Caches
from kici.orchestrator.errors import NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store import caches as stored
from kici.orchestrator.store.database import transaction
from kici.wire import agent_api, api

log = structlog.get_logger(__name__)

AGENT_PATH: Final = "/api/v1/agent/jobs/{job_id:str}/caches"
ADMIN_PATH: Final = "/api/v1/admin/caches"


def routes(pool: Pool[Record], access: Access, caches: Caches) -> list[HTTPRouteHandler]:
    @get(AGENT_PATH, status_code=200)
    async def fetch(
        job_id: FromPath[str],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        key: FromQuery[str],
        restore: Annotated[list[str] | None, QueryParameter(name="restore")] = None,
    ) -> Response[Any]:
        """The entry with this key, else the newest whose key begins with the first prefix of `restore` that finds one.
        204: there is none."""
        job = await attempt_of(access, request, job_id, attempt)
        permitted.require(job, "caches", permitted.READ)
        found = await caches.find(job.job_id, attempt, key, restore or ())
        if found is None:
            return Response(None, status_code=204)
        if not await caches.parts.begins(found):
            await caches.lost(found)
            return Response(None, status_code=204)
        return Response(await described(caches.parts, found, found.key))

    @post(f"{AGENT_PATH}/check", status_code=200)
    async def check(
        job_id: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int], entry: FromQuery[str]
    ) -> agent_api.CacheChecked:
        """For an entry that did not arrive whole: its object is read, and the entry removed if it is damaged."""
        job = await attempt_of(access, request, job_id, attempt)
        permitted.require(job, "caches", permitted.READ)
        wanted = parameters.uuid_of(entry, "cache entry")
        return agent_api.CacheChecked(await caches.is_damaged(job.job_id, attempt, wanted))

    @get(ADMIN_PATH, guards=[access.guard("queue.read")], summary="Entries of caches")
    async def list_caches(repo: FromQuery[str | None] = None, limit: FromQuery[int] = 500) -> api.CacheList:
        """What jobs can find, the last used first."""
        parameters.within(limit, 1, 1_000, "limit")
        async with transaction(pool) as db:
            found = await stored.listed(db, repo, limit)
        return api.CacheList(
            [
                api.Cache(one.id, one.repository, one.scope, one.key, one.size_bytes, one.created_at, one.used_at)
                for one in found
            ]
        )

    @delete(f"{ADMIN_PATH}/{{entry_id:str}}", guards=[access.guard("queue.manage")], status_code=204)
    async def delete_cache(entry_id: FromPath[str], request: Request[Any, Any, Any]) -> None:
        """No job finds it any more; its object goes a little later."""
        wanted = parameters.uuid_of(entry_id, "cache entry")
        async with transaction(pool) as db:
            dropped = await stored.drop(db, wanted)
        if not dropped:
            raise NotFound(f"there is no cache entry {wanted}")
        log.info("deleted a cache entry", entry=wanted, by=request.user.actor)

    return [fetch, check, list_caches, delete_cache]
