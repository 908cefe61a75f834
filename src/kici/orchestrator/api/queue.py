"""`/api/v1/admin/queue`: open work, and why it waits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from asyncpg import Pool, Record
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from kici.engine import waiting
from kici.orchestrator.api import parameters
from kici.orchestrator.api.runs import Explain
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import queue
from kici.wire import api

STATUSES = ("pending", "dispatched")


def routes(pool: Pool[Record], access: Access, *, explain: Explain) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/queue", guards=[access.guard("queue.read")])
    async def list_queue(
        status: FromQuery[str | None] = None,
        status_not_in: Annotated[str | None, QueryParameter(name="statusNotIn")] = None,
        workflow_name: Annotated[str | None, QueryParameter(name="workflowName")] = None,
        job_name: Annotated[str | None, QueryParameter(name="jobName")] = None,
        job_name_prefix: Annotated[str | None, QueryParameter(name="jobNamePrefix")] = None,
        job_name_not_like: Annotated[str | None, QueryParameter(name="jobNameNotLike")] = None,
        created_after: Annotated[str | None, QueryParameter(name="createdAfter")] = None,
        run_id: Annotated[str | None, QueryParameter(name="runId")] = None,
        limit: FromQuery[int] = 100,
    ) -> api.QueueList:
        """Newest runs first. `status`: `pending` (waits) or `dispatched` (an agent has it)."""
        wanted = {parameters.one_of(status, STATUSES, "status")} if status is not None else set(STATUSES)
        wanted -= set(parameters.some_of(status_not_in, STATUSES, "statusNotIn") or ())
        parameters.within(limit, 1, 1000, "limit")
        if not wanted:
            return api.QueueList([])
        looked_for = queue.Filter(
            status=None if len(wanted) == len(STATUSES) else next(iter(wanted)),
            workflow_name=workflow_name,
            job_name=job_name,
            job_name_prefix=job_name_prefix,
            job_name_not_like=job_name_not_like,
            created_after=parameters.instant(created_after, "createdAfter"),
            run_id=None if run_id is None else parameters.uuid_of(run_id, "run"),
        )
        async with transaction(pool) as db:
            entries = await queue.listed(db, looked_for, limit)
            reasons = await explain(db, [entry.job_id for entry in entries])
        return api.QueueList(
            [msgspec.structs.replace(entry, reason=reasons.get(entry.job_id, "")) for entry in entries]
        )

    @get("/api/v1/admin/queue/{job_id:str}", guards=[access.guard("queue.read")])
    async def show_entry(job_id: FromPath[str]) -> api.QueueAnswer:
        """One row of the queue. 404 for a job that waits for others, or has ended."""
        wanted = parameters.uuid_of(job_id, "job")
        async with transaction(pool) as db:
            row = await queue.one(db, wanted)
            if row is None:
                raise NotFound(f"queue: entry not found (id={wanted})")
            reasons = await explain(db, [wanted])
        return api.QueueAnswer(
            {_camel(name): value for name, value in {**row, "reason": reasons.get(wanted, "")}.items()}
        )

    @get("/api/v1/admin/queue/{job_id:str}/explain", guards=[access.guard("queue.read")])
    async def explain_job(job_id: FromPath[str]) -> api.Explanation:
        """All reasons for which a job waits, or what it does instead. The beginning of its id is enough."""
        first, last = parameters.uuid_range(job_id)
        async with transaction(pool) as db:
            found = await queue.jobs_between(db, first, last, 2)
            if not found:
                raise NotFound(f"there is no job whose id begins with {job_id}")
            if len(found) > 1:
                raise Conflict(f"{job_id} is the beginning of several job ids: give more of it")
            job = found[0]
            reasons = await explain(db, [job.job_id])
        reason = reasons.get(job.job_id) or waiting.not_waiting(
            job.status, job.agent_id, job.attempt, job.started_at, job.error_message
        )
        return api.Explanation(
            job.job_id, job.run_id, job.workflow_name, job.job_name, job.status, job.job_id in reasons, reason
        )

    return [list_queue, show_entry, explain_job]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
