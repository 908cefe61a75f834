"""Lanes of the dispatch queue, and the claim of their rows.

What a statement costs depends on the lanes that it asks for, never on how much waits. A claimed row leaves a dead entry
in its lane's index until vacuum comes by, and an old snapshot holds vacuum up for hours. So whoever reads a lane says
from which `sort_key` on: its bound. A row can also come to lie before a bound (a re-queue, a priority, a slow
transaction), so bounds are set anew from a look that has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from kici.orchestrator.store.database import Db

SLACK_S = 0.25
"""A bound stays so far behind the present: rows are put in by transactions that began before."""
FROM_THE_START = float("-inf")


class Lane(Struct, frozen=True, order=True):
    label_set_id: int
    repository: str


class Want(Struct, frozen=True):
    """One free slot's wish: the next job of that lane, for that session."""

    lane: Lane
    session_id: str
    token_hash: str
    bound: float = FROM_THE_START
    """Rows before it are not looked at. The same for all wants of a lane."""


class Claimed(Struct, frozen=True):
    job_id: str
    run_id: str
    attempt: int
    session_id: str
    token_hash: str
    used: int
    """Attempts that count, this one included."""
    lane: Lane
    bound: float
    """Up to which the lane is used up."""
    waited_s: float
    """Since it could have been claimed."""


async def open_label_sets(db: Db, known: Collection[int]) -> list[int]:
    """Label sets beside the known ones that have a free row: one probe for each, and for each that is known."""
    rows = await db.fetch(
        """
        with recursive known as materialized (
          select k.id, lead(k.id) over (order by k.id) as following from unnest($1::bigint[]) as k (id)
        ), found (id, following, fresh) as (
          (select 0::bigint, (select min(id) from known), false union all select id, following, false from known)
          union all
          select fresh.id, found.following, true
            from found
            cross join lateral (
              select q.label_set_id as id from dispatch_queue q
               where q.session_id is null and q.label_set_id > found.id
                 and q.label_set_id < coalesce(found.following, 9223372036854775807)
               order by q.label_set_id limit 1
            ) fresh
        )
        select id from found where fresh
        """,
        sorted(known),
    )
    return [row["id"] for row in rows]


async def open_lanes(
    db: Db, label_set_ids: Collection[int], known: Mapping[Lane, float] | None = None, *, limit: int | None = None
) -> dict[Lane, float]:
    """Lanes of these label sets that have a free row → the bound from which on there is one.

    One probe of the index for each, however long the lanes are. A `known` lane is read from its bound on, and what lies
    before that is not touched. Rows that are not due yet count.
    """
    bounds = sorted((known or {}).items())
    rows = await db.fetch(
        """
        with recursive known as materialized (
          select k.label_set_id, k.repository, k.bound,
                 lead(k.repository) over (partition by k.label_set_id order by k.repository) as following
            from unnest($2::bigint[], $3::text[], $4::float8[]) as k (label_set_id, repository, bound)
        ), found (label_set_id, repository, following, sort_key) as (
          (select s.id, ''::text, (select min(k.repository) from known k where k.label_set_id = s.id), null::float8
             from unnest($1::bigint[]) as s (id)
           union all
           select k.label_set_id, k.repository, k.following, null from known k)
          union all
          select found.label_set_id, fresh.repository, found.following, fresh.sort_key
            from found
            cross join lateral (
              (select q.repository, q.sort_key from dispatch_queue q
                where q.session_id is null and q.label_set_id = found.label_set_id
                  and q.repository > found.repository and q.repository < found.following
                order by q.repository, q.sort_key limit 1)
              union all
              (select q.repository, q.sort_key from dispatch_queue q
                where found.following is null and q.session_id is null and q.label_set_id = found.label_set_id
                  and q.repository > found.repository
                order by q.repository, q.sort_key limit 1)
            ) fresh
        )
        select heads.label_set_id, heads.repository,
               least(heads.sort_key, extract(epoch from now())::float8 - $6) as bound
          from (
            select label_set_id, repository, sort_key from found where sort_key is not null
            union all
            select k.label_set_id, k.repository, head.sort_key
              from known k
              cross join lateral (
                select q.sort_key from dispatch_queue q
                 where q.session_id is null and q.label_set_id = k.label_set_id and q.repository = k.repository
                   and q.sort_key >= k.bound
                 order by q.sort_key limit 1
              ) head
          ) heads
         limit $5
        """,
        sorted(label_set_ids),
        [lane.label_set_id for lane, _ in bounds],
        [lane.repository for lane, _ in bounds],
        [bound for _, bound in bounds],
        limit,
        SLACK_S,
    )
    return {Lane(row["label_set_id"], row["repository"]): row["bound"] for row in rows}


async def every_open_lane(db: Db, *, limit: int | None = None) -> dict[Lane, float]:
    """All lanes that have a free row, whoever may run it, with their bounds."""
    return await open_lanes(db, await open_label_sets(db, ()), limit=limit)


async def next_due_s(db: Db) -> float | None:
    """Seconds until the first row may be claimed that waits for its next attempt; None: there is none."""
    due = await db.fetchval(
        """
        select extract(epoch from not_before - now())::float8 from dispatch_queue
         where session_id is null and attempt > 0 and not_before > now() order by not_before limit 1
        """
    )
    return None if due is None else float(due)


async def lock_caps(db: Db, repositories: Collection[str]) -> None:
    """Until the transaction ends nobody else claims for these repositories, so that their running jobs can be counted.

    To be called before `claim`, whose statement then sees what the one before us has committed.
    """
    await db.execute(
        "select pg_advisory_xact_lock(hashtextextended('cap ' || name, 0)) from unnest($1::text[]) as r (name)",
        sorted(repositories),
    )


async def claim(
    db: Db,
    coordinator: str,
    wants: Sequence[Want],
    ack_timeout_s: float,
    *,
    capped: Collection[str] = (),
    default_cap: int | None = None,
) -> list[Claimed]:
    """Give each want the next due row of its lane, in one statement. Rows that somebody else is claiming are passed
    over.

    Raises the attempt, sets the session, the hash of the attempt's job token and the ack deadline. A coordinator whose
    lease has lapsed gets nothing, nor does a session that is lost or closed. Nothing is claimed of what is paused, nor
    more of a repository than its cap leaves room for; `capped` are the repositories for which the caller has called
    `lock_caps`, and of another that has a cap nothing is given.
    """
    rows = await db.fetch(
        """
        with wanted as (
          select w.label_set_id, w.repository, w.bound, w.number
            from unnest($1::bigint[], $2::text[], $3::uuid[], $4::text[], $5::float8[]) with ordinality
              as w (label_set_id, repository, session_id, token_hash, bound, number)
            join agent_sessions s on s.id = w.session_id and s.closed_at is null and s.lost_at is null
           where exists (select from coordinators c where c.instance = $6 and c.lease_expires_at > clock_timestamp())
        ), lanes as materialized (
          select w.label_set_id, w.repository, min(w.bound) as bound, count(*) as free,
                 array_agg(w.number order by w.number) as numbers, coalesce(c.max_running, $8) as cap
            from wanted w
            join label_sets s on s.id = w.label_set_id
            left join repository_caps c on c.repository = w.repository
           where (coalesce(c.max_running, $8) is null or w.repository = any($9::text[]))
             and not exists (select from queue_pauses p
                              where p.scope = 'all'
                                 or (p.scope = 'repository' and p.value = w.repository)
                                 or (p.scope = 'label' and p.value = any(s.labels)))
           group by w.label_set_id, w.repository, c.max_running
        ), rooms as materialized (
          select lanes.*, case when cap is not null then greatest(0, cap - (
                   select count(*) from dispatch_queue h
                    where h.repository = lanes.repository and h.session_id is not null)) end as room
            from lanes
        ), picked as materialized (
          select row.at, rooms.label_set_id, rooms.repository, rooms.room,
                 row_number() over (partition by rooms.label_set_id, rooms.repository order by row.sort_key) as place,
                 row_number() over (partition by rooms.repository order by row.sort_key, row.id) as of_repository
            from rooms
            cross join lateral (
              select q.ctid as at, q.id, q.sort_key from dispatch_queue q
               where q.session_id is null and q.not_before <= now()
                 and q.label_set_id = rooms.label_set_id and q.repository = rooms.repository
                 and q.sort_key >= rooms.bound
               order by q.sort_key
               limit least(rooms.free, rooms.room)
                 for update skip locked
            ) row
        )
        update dispatch_queue q
           set session_id = ($3::uuid[])[l.numbers[p.place]],
               job_token_hash = ($4::text[])[l.numbers[p.place]],
               attempt = q.attempt + 1,
               accepted_at = null,
               claimed_at = now(),
               ack_deadline = now() + make_interval(secs => $7)
          from picked p
          join lanes l on l.label_set_id = p.label_set_id and l.repository = p.repository
         -- By place in the table: the rows are locked, and statistics of a queue that was empty cannot mislead.
         where q.ctid = p.at and (p.room is null or p.of_repository <= p.room)
        returning q.id, q.run_id, q.attempt, q.session_id, q.job_token_hash, q.attempt - q.rejections as used,
                  q.label_set_id, q.repository,
                  least(q.sort_key, extract(epoch from now())::float8 - $10) as bound,
                  extract(epoch from now() - greatest(q.enqueued_at, q.not_before))::float8 as waited_s
        """,
        [want.lane.label_set_id for want in wants],
        [want.lane.repository for want in wants],
        [want.session_id for want in wants],
        [want.token_hash for want in wants],
        [want.bound for want in wants],
        coordinator,
        ack_timeout_s,
        default_cap,
        sorted(capped),
        SLACK_S,
    )
    return [
        Claimed(
            job_id=row["id"],
            run_id=row["run_id"],
            attempt=row["attempt"],
            session_id=row["session_id"],
            token_hash=row["job_token_hash"],
            used=row["used"],
            lane=Lane(row["label_set_id"], row["repository"]),
            bound=row["bound"],
            waited_s=row["waited_s"],
        )
        for row in rows
    ]
