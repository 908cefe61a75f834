"""Open work in the queue, as the API shows it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api

RUNS = 10_000
"""Waiting jobs are looked for among so many of the newest open runs."""

_COLUMNS = """
  q.id as job_id, q.run_id, q.workflow_name, q.job_name, q.attempt, q.created_at, q.repository, q.expires_at,
  case when q.session_id is null then 'pending' else 'dispatched' end as status, '' as reason
"""


class Filter(Struct, frozen=True):
    status: str | None = None
    """`pending` or `dispatched`"""
    workflow_name: str | None = None
    job_name: str | None = None
    job_name_prefix: str | None = None
    job_name_not_like: str | None = None
    """A pattern of SQL's `like`."""
    created_after: datetime | None = None
    run_id: str | None = None


class Found(Struct, frozen=True):
    """A job, in the queue or not."""

    job_id: str
    run_id: str
    job_name: str
    workflow_name: str
    status: str
    attempt: int
    agent_id: str | None
    started_at: datetime | None
    completed_at: datetime | None
    error_message: str | None


async def listed(db: Db, wanted: Filter, limit: int) -> list[api.QueueEntry]:
    """Newest runs first. Without reasons."""
    made = Conditions()
    made.add("(q.session_id is not null) = {}", None if wanted.status is None else wanted.status == "dispatched")
    made.add("q.workflow_name = {}", wanted.workflow_name)
    made.add("q.job_name = {}", wanted.job_name)
    made.add("starts_with(q.job_name, {})", wanted.job_name_prefix)
    made.add("q.job_name not like {}", wanted.job_name_not_like)
    made.add("q.created_at > {}", wanted.created_after)
    made.add("q.run_id = {}::uuid", wanted.run_id)
    where = made.where
    rows = await db.fetch(
        f"""
        select {_COLUMNS} from {_source(wanted)} {where}
         order by {"q.created_at" if _is_small(wanted) else "r.created_at"} desc, q.created_at desc, q.id desc
         limit {made.param(limit)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    return [api.QueueEntry(**row) for row in rows]


def _is_small(wanted: Filter) -> bool:
    """What agents have, or one run's, is found by an index of its own."""
    return wanted.status == "dispatched" or wanted.run_id is not None


def _source(wanted: Filter) -> str:
    if wanted.run_id is not None:
        return "dispatch_queue q"
    if wanted.status == "dispatched":
        return "(select * from dispatch_queue where session_id is not null) q"
    return f"""
      (select run_id, created_at from execution_runs where status in ('pending', 'held', 'running', 'cancelling')
        order by created_at desc limit {RUNS}) r
      cross join lateral (select * from dispatch_queue own where own.run_id = r.run_id) q
    """  # noqa: S608 - constants


async def one(db: Db, job_id: str) -> dict[str, Any] | None:
    """Every column of the row but its token, with the labels that it wants."""
    row = await db.fetchrow(
        f"""
        select {_COLUMNS}, q.rejections, q.sort_key, q.not_before, q.enqueued_at, q.claimed_at, q.accepted_at,
               q.ack_deadline, q.last_loss, q.last_provisioning_error, q.session_id, s.agent_id,
               l.labels, l.excludes
          from dispatch_queue q
          join label_sets l on l.id = q.label_set_id
          left join agent_sessions s on s.id = q.session_id
         where q.id = $1
        """,  # noqa: S608 - constants
        job_id,
    )
    return None if row is None else dict(row)


async def jobs_between(db: Db, first: str, last: str, limit: int) -> Sequence[Found]:
    """Jobs whose ids lie between these two."""
    rows = await db.fetch(
        """
        select j.job_id, j.run_id, j.job_name, r.workflow_name, j.status, j.attempt, j.agent_id, j.started_at,
               j.completed_at, j.error_message
          from execution_jobs j join execution_runs r on r.run_id = j.run_id
         where j.job_id between $1 and $2 order by j.job_id limit $3
        """,
        first,
        last,
        limit,
    )
    return [Found(**row) for row in rows]
