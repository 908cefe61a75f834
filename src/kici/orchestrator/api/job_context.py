"""`GET /api/v1/agent/jobs/{id}/context`: what an attempt must know, where it was too large for the
agent's socket or holds secrets."""

from __future__ import annotations

from typing import Any

import msgspec
from asyncpg import Pool, Record
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from msgspec.structs import replace

from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.dispatch import orders
from kici.orchestrator.identity.access import Access
from kici.orchestrator.secrets.job_outputs import SecretOutputs
from kici.orchestrator.store import jobs
from kici.orchestrator.store.database import transaction

MSGPACK = "application/msgpack"


def routes(pool: Pool[Record], access: Access, place: orders.Place, outputs: SecretOutputs) -> list[HTTPRouteHandler]:
    @get("/api/v1/agent/jobs/{job_id:str}/context")
    async def job_context(
        job_id: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int]
    ) -> Response[bytes]:
        """msgpack of `wire.context.JobContext`, for the attempt whose token this is."""
        job = await attempt_of(access, request, job_id, attempt)
        async with transaction(pool) as db:
            found = await jobs.orders(db, [job.job_id])
            secrets = await outputs.of_needed(db, job.job_id)
        context = replace(orders.context(found[job.job_id], attempt, place), secrets=secrets)
        return Response(msgspec.msgpack.encode(context), media_type=MSGPACK)

    return [job_context]
