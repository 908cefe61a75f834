"""`/api/v1/admin/agents`: who is connected, and what it does."""

from __future__ import annotations

from asyncpg import Pool, Record
from litestar import get
from litestar.handlers import HTTPRouteHandler

from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import agents
from kici.wire import api


def routes(pool: Pool[Record], access: Access) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/agents", guards=[access.guard("agent.read")])
    async def list_agents() -> api.AgentList:
        async with transaction(pool) as db:
            return api.AgentList(await agents.listed(db))

    return [list_agents]
