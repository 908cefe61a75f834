"""`PUT /api/v1/agent/jobs/{id}/secret-outputs/{name}`: a job hands over a secret to the jobs that need it."""

from __future__ import annotations

from typing import Any

from asyncpg import Pool, Record
from litestar import Request, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from kici.orchestrator.api import permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.identity.access import Access
from kici.orchestrator.secrets.job_outputs import MAX_BYTES, SecretOutputs
from kici.orchestrator.store.database import transaction


def routes(pool: Pool[Record], access: Access, outputs: SecretOutputs) -> list[HTTPRouteHandler]:
    @put(
        "/api/v1/agent/jobs/{job_id:str}/secret-outputs/{name:str}",
        status_code=204,
        request_max_body_size=MAX_BYTES + 1,
    )
    async def keep(
        job_id: FromPath[str], name: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int]
    ) -> None:
        """Body: the value, as it is, in UTF-8. The last one of an attempt counts. 409: the attempt is over."""
        job = await attempt_of(access, request, job_id, attempt)
        permitted.require(job, "secret_outputs", permitted.WRITE)
        value = await request.body()
        async with transaction(pool) as db:
            await outputs.put(db, job.job_id, attempt, name, value)

    return [keep]
