"""Open work in the queue, as the API shows it."""

from __future__ import annotations

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api


class Filter(Struct, frozen=True):
    status: str | None = None
    """`pending` or `dispatched`"""
    workflow_name: str | None = None
    job_name: str | None = None
    job_name_prefix: str | None = None
    run_id: str | None = None


async def listed(db: Db, wanted: Filter, limit: int) -> list[api.QueueEntry]:
    """Newest first. Without reasons."""
    made = Conditions()
    made.add("(q.session_id is not null) = {}", None if wanted.status is None else wanted.status == "dispatched")
    made.add("q.workflow_name = {}", wanted.workflow_name)
    made.add("q.job_name = {}", wanted.job_name)
    made.add("starts_with(q.job_name, {})", wanted.job_name_prefix)
    made.add("q.run_id = {}::uuid", wanted.run_id)
    where = made.where
    rows = await db.fetch(
        f"""
        select q.id as job_id, q.run_id, q.workflow_name, q.job_name, q.attempt, q.created_at, q.repository,
               case when q.session_id is null then 'pending' else 'dispatched' end as status, '' as reason
          from dispatch_queue q {where} order by q.created_at desc, q.id desc limit {made.param(limit)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    return [api.QueueEntry(**row) for row in rows]
