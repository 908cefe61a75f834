"""`/api/v1/admin/queue`: open work, and why it waits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from asyncpg import Pool, Record
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, QueryParameter

from kici.orchestrator.api import parameters
from kici.orchestrator.api.runs import Explain
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import queue
from kici.wire import api


def routes(pool: Pool[Record], access: Access, *, explain: Explain) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/queue", guards=[access.guard("queue.read")])
    async def list_queue(
        status: FromQuery[str | None] = None,
        workflow_name: Annotated[str | None, QueryParameter(name="workflowName")] = None,
        job_name: Annotated[str | None, QueryParameter(name="jobName")] = None,
        job_name_prefix: Annotated[str | None, QueryParameter(name="jobNamePrefix")] = None,
        run_id: Annotated[str | None, QueryParameter(name="runId")] = None,
        limit: FromQuery[int] = 100,
    ) -> api.QueueList:
        """Newest first. `status`: `pending` (waits) or `dispatched` (an agent has it)."""
        wanted = queue.Filter(
            status=parameters.one_of(status, ("pending", "dispatched"), "status"),
            workflow_name=workflow_name,
            job_name=job_name,
            job_name_prefix=job_name_prefix,
            run_id=None if run_id is None else parameters.uuid_of(run_id, "run"),
        )
        async with transaction(pool) as db:
            entries = await queue.listed(db, wanted, parameters.within(limit, 1, 1000, "limit"))
            reasons = await explain(db, [entry.job_id for entry in entries])
        return api.QueueList(
            [msgspec.structs.replace(entry, reason=reasons.get(entry.job_id, "")) for entry in entries]
        )

    return [list_queue]
