"""`/api/v1/admin/workflows`: what the default branches have registered. `/api/v1/admin/whoami`: whose token this is."""

from __future__ import annotations

from typing import Annotated, Any

from asyncpg import Pool, Record
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, QueryParameter

from kici import __version__
from kici.orchestrator.api import parameters
from kici.orchestrator.identity.access import Access, Principal
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import workflows
from kici.wire import api


def routes(pool: Pool[Record], access: Access) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/workflows", guards=[access.guard("run.read")])
    async def list_workflows(
        repo: FromQuery[str | None] = None,
        trigger_type: Annotated[str | None, QueryParameter(name="triggerType")] = None,
        not_since: Annotated[str | None, QueryParameter(name="notSince")] = None,
        limit: FromQuery[int] = 100,
        offset: FromQuery[int] = 0,
    ) -> api.RegistrationList:
        parameters.within(limit, 1, 500, "limit")
        parameters.within(offset, 0, 1_000_000, "offset")
        wanted = workflows.Filter(repo, trigger_type, parameters.instant(not_since, "notSince"))
        async with transaction(pool) as db:
            found = await workflows.listed(db, wanted, limit, offset)
            return api.RegistrationList(found, await workflows.count(db, wanted), limit, offset)

    @get("/api/v1/admin/whoami", guards=[access.guard("run.read")], sync_to_thread=False)
    def whoami(request: Request[Any, Any, Any]) -> api.Whoami:
        """Every role may ask."""
        principal: Principal = request.user
        return api.Whoami(principal.label, principal.role, principal.expires_at, __version__)

    return [list_workflows, whoami]
