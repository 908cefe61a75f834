"""What explains why a job waits. Everything is read, nothing locked; what is counted is counted up to a bound."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from msgspec import Struct

from kici.engine.lifecycle import JobStatus
from kici.engine.waiting import COUNTED
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lanes import Lane


class Standing(Struct, frozen=True):
    """A job that has not ended."""

    job_id: str
    run_id: str
    job_name: str
    base_job_name: str
    status: JobStatus
    now: datetime
    needs_satisfied: bool
    wave_gated: bool
    wave_max_parallel: int | None
    recovery_deadline: datetime | None
    report_deadline: datetime | None
    cancel_requested_at: datetime | None
    cancel_deadline: datetime | None
    cancel_force: bool
    session_id: str | None
    """Of the agent that has it, or was sent it."""
    label_set_id: int | None
    """None: it has no row in the queue."""
    repository: str | None
    sort_key: float | None
    attempt: int
    claimed_at: datetime | None
    ack_deadline: datetime | None
    not_before: datetime | None
    last_loss: str | None
    last_provisioning_error: str | None

    @property
    def lane(self) -> Lane | None:
        """Of a free row."""
        if self.label_set_id is None or self.session_id is not None:
            return None
        return Lane(self.label_set_id, self.repository or "")


class InLine(Struct, frozen=True):
    """A run (`job_id` None) or job that waits for a concurrency group."""

    run_id: str
    job_id: str | None
    scope: str
    group: str
    place: int
    waiting: int


class GroupHolder(Struct, frozen=True):
    scope: str
    group: str
    run_id: str
    job_name: str | None
    activated_at: datetime | None
    stopping: bool


class LaneHead(Struct, frozen=True):
    """The first rows of a lane, one more than are counted."""

    keys: list[float]
    oldest_s: float


async def standing(db: Db, job_ids: Collection[str]) -> list[Standing]:
    """Those of these jobs that have not ended and do not run undisturbed."""
    rows = await db.fetch(
        """
        select j.job_id, j.run_id, j.job_name, j.base_job_name, j.status, now() as now, j.needs_satisfied, j.wave_gated,
               j.wave_max_parallel, j.recovery_deadline, j.report_deadline, j.cancel_requested_at, j.cancel_deadline,
               j.cancel_force, coalesce(q.session_id, j.session_id) as session_id, q.label_set_id, q.repository,
               q.sort_key, coalesce(q.attempt, 0) as attempt, q.claimed_at, q.ack_deadline, q.not_before, q.last_loss,
               q.last_provisioning_error
          from execution_jobs j left join dispatch_queue q on q.id = j.job_id
         where j.job_id = any($1::uuid[]) and j.status in ('pending', 'queued', 'recovering', 'cancelling')
         order by j.job_id
        """,
        sorted(job_ids),
    )
    return [Standing(**{**dict(row), "status": JobStatus(row["status"])}) for row in rows]


async def in_line(db: Db, run_ids: Collection[str]) -> list[InLine]:
    rows = await db.fetch(
        """
        select w.run_id, w.job_id, w.routing_key as scope, w.group_key as "group", counted.place, counted.waiting
          from concurrency_groups w
          cross join lateral (
            select count(*) as waiting, count(*) filter (where o.arrival <= w.arrival) as place
              from concurrency_groups o
             where o.routing_key = w.routing_key and o.group_key = w.group_key and o.status = 'queued'
          ) counted
         where w.run_id = any($1::uuid[]) and w.status = 'queued'
        """,
        sorted(run_ids),
    )
    return [InLine(**row) for row in rows]


async def holders(db: Db, groups: Collection[tuple[str, str]]) -> list[GroupHolder]:
    """Of these (scope, group), the longest holder first."""
    wanted = sorted(groups)
    rows = await db.fetch(
        """
        select h.routing_key as scope, h.group_key as "group", h.run_id, j.job_name, h.activated_at,
               coalesce(j.status, r.status) = 'cancelling' as stopping
          from unnest($1::text[], $2::text[]) as w (scope, name)
          join concurrency_groups h on h.routing_key = w.scope and h.group_key = w.name and h.status = 'active'
          join execution_runs r on r.run_id = h.run_id
          left join execution_jobs j on j.job_id = h.job_id
         order by h.arrival
        """,
        [scope for scope, _ in wanted],
        [name for _, name in wanted],
    )
    return [GroupHolder(**row) for row in rows]


async def in_flight(db: Db, run_ids: Collection[str]) -> dict[tuple[str, str], int]:
    """(run, base name of a job) → how many of that fan-out have their place and have not ended."""
    rows = await db.fetch(
        """
        select run_id, base_job_name, count(*) as running from execution_jobs
         where run_id = any($1::uuid[]) and status in ('queued', 'running', 'recovering', 'cancelling')
         group by run_id, base_job_name
        """,
        sorted(run_ids),
    )
    return {(row["run_id"], row["base_job_name"]): row["running"] for row in rows}


async def heads(db: Db, lanes: Collection[Lane]) -> dict[Lane, LaneHead]:
    wanted = sorted(lanes)
    rows = await db.fetch(
        """
        select l.label_set_id, l.repository,
               array(select q.sort_key from dispatch_queue q
                      where q.session_id is null and q.label_set_id = l.label_set_id and q.repository = l.repository
                      order by q.sort_key limit $3) as keys,
               (select extract(epoch from now() - q.enqueued_at)::float8 from dispatch_queue q
                 where q.session_id is null and q.label_set_id = l.label_set_id and q.repository = l.repository
                 order by q.sort_key limit 1) as oldest_s
          from unnest($1::bigint[], $2::text[]) as l (label_set_id, repository)
        """,
        [lane.label_set_id for lane in wanted],
        [lane.repository for lane in wanted],
        COUNTED + 1,
    )
    return {Lane(row["label_set_id"], row["repository"]): LaneHead(row["keys"], row["oldest_s"] or 0.0) for row in rows}
