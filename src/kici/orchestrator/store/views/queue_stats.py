"""How much waits, where, and since when. Counted up to bounds, so that asking costs the same however much waits."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from kici.orchestrator.store import lanes
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lanes import Lane

LANES = 500
"""So many lanes are told of."""
COUNTED = 1_000
"""A lane is counted up to here, and one more."""


class Depth(Struct, frozen=True):
    lane: Lane
    count: int
    """`COUNTED` + 1: more than are counted."""
    oldest_s: float


class Claimed(Struct, frozen=True):
    repository: str
    dispatched: int
    """Sent, and not yet accepted."""
    running: int
    oldest_dispatched_s: float | None
    oldest_running_s: float | None


class Totals(Struct, frozen=True):
    pending: int
    estimated: bool
    """`pending` is PostgreSQL's estimate: there is more than was counted."""
    delayed: int
    """Of those that wait, for a next attempt that is not due yet; at most `COUNTED` + 1."""
    depths: list[Depth]
    claimed: list[Claimed]
    left_out: bool
    """There are more lanes than are told of."""


async def read(db: Db) -> Totals:
    found = await lanes.every_open_lane(db, limit=LANES + 1)
    shown = sorted(found)[:LANES]
    depths = await _depths(db, shown)
    counted = sum(depth.count for depth in depths)
    more = len(found) > LANES or any(depth.count > COUNTED for depth in depths)
    estimate = await _estimate(db) if more else 0
    return Totals(
        pending=max(counted, estimate),
        estimated=more,
        delayed=await _delayed(db),
        depths=depths,
        claimed=await read_claimed(db),
        left_out=len(found) > LANES,
    )


async def _depths(db: Db, wanted: Collection[Lane]) -> list[Depth]:
    rows = await db.fetch(
        """
        select l.label_set_id, l.repository, counted.rows as count, coalesce(head.oldest_s, 0) as oldest_s
          from unnest($1::bigint[], $2::text[]) as l (label_set_id, repository)
          cross join lateral (
            select count(*) as rows from (
              select from dispatch_queue q
               where q.session_id is null and q.label_set_id = l.label_set_id and q.repository = l.repository
               order by q.sort_key limit $3) first
          ) counted
          left join lateral (
            select extract(epoch from now() - q.enqueued_at)::float8 as oldest_s from dispatch_queue q
             where q.session_id is null and q.label_set_id = l.label_set_id and q.repository = l.repository
             order by q.sort_key limit 1
          ) head on true
        """,
        [lane.label_set_id for lane in wanted],
        [lane.repository for lane in wanted],
        COUNTED + 1,
    )
    return [Depth(Lane(row["label_set_id"], row["repository"]), row["count"], row["oldest_s"]) for row in rows]


async def _estimate(db: Db) -> int:
    """Entries of the lanes' index when it was last looked through."""
    found: float = await db.fetchval("select reltuples from pg_class where oid = 'dispatch_queue_lane'::regclass")
    return max(int(found), 0)


async def _delayed(db: Db) -> int:
    found: int = await db.fetchval(
        """
        select count(*) from (
          select from dispatch_queue where session_id is null and attempt > 0 and not_before > now()
           order by not_before limit $1) first
        """,
        COUNTED + 1,
    )
    return found


async def read_claimed(db: Db) -> list[Claimed]:
    """By repository. There are as many rows as slots are taken."""
    rows = await db.fetch(
        """
        select repository, count(*) filter (where accepted_at is null) as dispatched,
               count(*) filter (where accepted_at is not null) as running,
               extract(epoch from now() - min(claimed_at) filter (where accepted_at is null))::float8
                 as oldest_dispatched_s,
               extract(epoch from now() - min(accepted_at))::float8 as oldest_running_s
          from dispatch_queue where session_id is not null group by repository order by repository
        """
    )
    return [Claimed(**row) for row in rows]
