"""`GET /api/v1/agent/check`, for `kici-agent check`: what an agent would meet with this token, these labels, this id.

It reads only: no session is opened, so a living agent with the same id keeps its own.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Protocol

from asyncpg import Pool, Record
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

import kici
from kici.engine import labels
from kici.orchestrator.errors import OrchestratorError
from kici.orchestrator.identity.access import Access, AgentPrincipal, bearer
from kici.orchestrator.store import sessions
from kici.orchestrator.store.database import transaction
from kici.wire.agent_api import AgentCheck
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN

STORAGE_S = 5.0
_ASKED_FOR = "checks/agent"
"""An object that is not there: whoever says so answers."""


class Sizes(Protocol):
    async def size(self, key: str) -> int | None: ...


def routes(pool: Pool[Record], access: Access, objects: Sizes) -> list[HTTPRouteHandler]:
    @get("/api/v1/agent/check", summary="What a hello of an agent would meet")
    async def agent_check(
        request: Request[Any, Any, Any],
        agent_id: Annotated[str, QueryParameter(name="agentId")] = "",
        label: Annotated[list[str] | None, QueryParameter()] = None,
    ) -> AgentCheck:
        """With the agent's token. `label` may be repeated: all that it would offer."""
        agent = await access.agent(bearer(request))
        problem = await _storage_problem(objects)
        async with transaction(pool) as db:
            there = [one for one in await sessions.of_agent(db, agent_id) if one.alive and not one.lost]
            clock = await db.fetchval("select clock_timestamp()")
        return AgentCheck(
            version=kici.__version__,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            token_prefix=agent.token_prefix,
            labels=None if agent.labels is None else list(agent.labels),
            refused_labels=list(labels.foreign(label or [], agent.labels)),
            agent_id=_state(agent, there),
            clock=clock,
            storage_problem=problem,
        )

    return [agent_check]


def _state(agent: AgentPrincipal, there: list[sessions.Session]) -> str:
    if any(one.token_id != agent.token_id for one in there):
        return "foreign"
    return "connected" if there else "free"


async def _storage_problem(objects: Sizes) -> str:
    try:
        async with asyncio.timeout(STORAGE_S):
            await objects.size(_ASKED_FOR)
    except TimeoutError:
        return f"the object store did not answer within {STORAGE_S:g} s"
    except OrchestratorError as error:
        return str(error)
    return ""
