"""The dispatch queue: open work only. A row lives from the moment its job may start until the job ends.

A lane is (label set, repository); inside it the order is fixed at enqueue by `sort_key`. A row is *free* (no session),
*claimed* (session and ack deadline: sent to an agent) or *accepted* (session, `accepted_at`). A queue row is the
last in the one lock order: whoever also needs the run or the job has locked those before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
from asyncpg import Record
from msgspec import Struct

from kici.engine import labels
from kici.engine.lifecycle import JobStatus
from kici.engine.lockfile import Pattern
from kici.engine.patterns import show
from kici.orchestrator.store.database import Db

PRIORITY_WEIGHT_S = 60.0
"""One step of priority is worth so much waiting: age wins in the end."""

STEP_S = 1e-6
"""Between two jobs that are put together, so that they keep their order."""


class Enqueue(Struct, frozen=True):
    """A job that may start now, or `delay_s` from now."""

    job_id: str
    run_id: str
    workflow_name: str
    job_name: str
    repository: str
    requirement: labels.Requirement
    priority: int = 0
    delay_s: float = 0.0
    attempt: int = 0
    """The last one that was used up."""
    expires_s: float | None = None
    """None = it waits for ever."""


class Lane(Struct, frozen=True):
    label_set_id: int
    repository: str


class LabelSet(Struct, frozen=True):
    id: int
    requirement: labels.Requirement


class Want(Struct, frozen=True):
    """One free slot's wish: the next job of that lane, for that session."""

    lane: Lane
    session_id: str
    token_hash: str


class Claimed(Struct, frozen=True):
    job_id: str
    run_id: str
    attempt: int
    session_id: str
    token_hash: str
    used: int
    """Attempts that count, this one included."""


class QueueRow(Struct, frozen=True):
    id: str
    """= job id"""
    run_id: str
    attempt: int
    session_id: str | None
    accepted_at: datetime | None
    rejections: int

    @property
    def used(self) -> int:
        """Attempts that count against the limits: those that were given back do not."""
        return self.attempt - self.rejections


class Release(Struct, frozen=True):
    """A claimed row goes back to its lane."""

    job_id: str
    delay_s: float = 0.0
    given_back: bool = False
    """The attempt does not count."""
    expires_s: float | None = None


class Overdue(Struct, frozen=True):
    job_id: str
    run_id: str
    attempt: int
    session_id: str | None = None
    last_provisioning_error: str | None = None


class Place(Struct, frozen=True):
    """Where a job stands that has not ended."""

    job_id: str
    status: JobStatus
    label_set_id: int | None
    attempt: int
    session_id: str | None
    """Of the agent that has it, or was sent it."""
    due_in_s: float


async def enqueue(db: Db, rows: Sequence[Enqueue]) -> None:
    """Put jobs into their lanes. A job that has its row already is left alone."""
    if not rows:
        return
    sets = await _label_sets_of(db, {labels.key(row.requirement): row.requirement for row in rows})
    await db.execute(
        """
        insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, attempt, sort_key,
                                    not_before, expires_at)
        select n.id, n.run_id, n.workflow_name, n.job_name, n.repository, n.label_set_id, n.attempt,
               extract(epoch from now()) - n.priority * $11::float8 + n.number * $12::float8,
               now() + make_interval(secs => n.delay_s),
               now() + make_interval(secs => n.expires_s)
          from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::int[], $8::int[],
                      $9::float8[], $10::float8[]) with ordinality
            as n (id, run_id, workflow_name, job_name, repository, label_set_id, attempt, priority, delay_s, expires_s,
                  number)
        on conflict (id) do nothing
        """,
        [row.job_id for row in rows],
        [row.run_id for row in rows],
        [row.workflow_name for row in rows],
        [row.job_name for row in rows],
        [row.repository for row in rows],
        [sets[labels.key(row.requirement)] for row in rows],
        [row.attempt for row in rows],
        [row.priority for row in rows],
        [row.delay_s for row in rows],
        [row.expires_s for row in rows],
        PRIORITY_WEIGHT_S,
        STEP_S,
    )


async def _label_sets_of(db: Db, wanted: dict[str, labels.Requirement]) -> dict[str, int]:
    keys = sorted(wanted)
    known = {row["key"]: row["id"] for row in await _sets_by_key(db, keys)}
    new = [key for key in keys if key not in known]
    if not new:
        return known
    await db.executemany(
        """
        insert into label_sets (key, labels, excludes, patterns) values ($1, $2, $3, $4) on conflict (key) do nothing
        """,
        [
            (
                key,
                list(wanted[key].labels),
                [pattern for pattern in wanted[key].excludes if isinstance(pattern, str)],
                msgspec.to_builtins(
                    {
                        "patterns": wanted[key].patterns,
                        "excludes": [pattern for pattern in wanted[key].excludes if not isinstance(pattern, str)],
                    }
                ),
            )
            for key in new
        ],
    )
    return {row["key"]: row["id"] for row in await _sets_by_key(db, keys)}


async def _sets_by_key(db: Db, keys: Sequence[str]) -> list[Record]:
    return await db.fetch("select id, key from label_sets where key = any($1::text[])", keys)


class _Patterns(Struct):
    """What `label_sets.patterns` holds: globs and regular expressions that an agent must have, and regular expressions
    that it must not."""

    patterns: tuple[Pattern, ...] = ()
    excludes: tuple[Pattern, ...] = ()


async def label_sets(db: Db, ids: Collection[int]) -> list[LabelSet]:
    rows = await db.fetch(
        "select id, labels, excludes, patterns from label_sets where id = any($1::bigint[])", list(ids)
    )
    found = []
    for row in rows:
        more = msgspec.convert(row["patterns"] or {}, _Patterns)
        excludes = tuple(sorted((*row["excludes"], *more.excludes), key=show))
        found.append(LabelSet(row["id"], labels.Requirement(tuple(row["labels"]), excludes, more.patterns)))
    return found


async def open_lanes(db: Db) -> list[Lane]:
    """Lanes with at least one free row, by a loose scan: one probe of the index per lane, however long the lanes
    are."""
    rows = await db.fetch(
        """
        with recursive lane (label_set_id, repository) as (
          (select label_set_id, repository from dispatch_queue where session_id is null
            order by label_set_id, repository limit 1)
          union all
          select following.label_set_id, following.repository
            from lane
            cross join lateral (
              select q.label_set_id, q.repository from dispatch_queue q
               where q.session_id is null and (q.label_set_id, q.repository) > (lane.label_set_id, lane.repository)
               order by q.label_set_id, q.repository limit 1
            ) following
        )
        select label_set_id, repository from lane
        """
    )
    return [Lane(row["label_set_id"], row["repository"]) for row in rows]


async def claim(db: Db, coordinator: str, wants: Sequence[Want], ack_timeout_s: float) -> list[Claimed]:
    """Give each want the next due row of its lane, in one statement. Rows that somebody else is claiming are passed
    over.

    Raises the attempt, sets the session, the hash of the attempt's job token and the ack deadline. A coordinator whose
    lease has lapsed gets nothing, nor does a session that is lost or closed.
    """
    rows = await db.fetch(
        """
        with wanted as (
          select w.label_set_id, w.repository, w.number
            from unnest($1::bigint[], $2::text[], $3::uuid[], $4::text[]) with ordinality
              as w (label_set_id, repository, session_id, token_hash, number)
            join agent_sessions s on s.id = w.session_id and s.closed_at is null and s.lost_at is null
           where exists (select from coordinators c where c.instance = $5 and c.lease_expires_at > clock_timestamp())
        ), lanes as materialized (
          select label_set_id, repository, count(*) as free, array_agg(number order by number) as numbers
            from wanted group by label_set_id, repository
        ), picked as materialized (
          select row.at, lanes.label_set_id, lanes.repository,
                 row_number() over (partition by lanes.label_set_id, lanes.repository order by row.sort_key) as place
            from lanes
            cross join lateral (
              select q.ctid as at, q.sort_key from dispatch_queue q
               where q.session_id is null and q.not_before <= now()
                 and q.label_set_id = lanes.label_set_id and q.repository = lanes.repository
               order by q.sort_key
               limit lanes.free
                 for update skip locked
            ) row
        )
        update dispatch_queue q
           set session_id = ($3::uuid[])[l.numbers[p.place]],
               job_token_hash = ($4::text[])[l.numbers[p.place]],
               attempt = q.attempt + 1,
               accepted_at = null,
               ack_deadline = now() + make_interval(secs => $6)
          from picked p
          join lanes l on l.label_set_id = p.label_set_id and l.repository = p.repository
         where q.ctid = p.at -- the rows are locked, so they stay where they are
        returning q.id, q.run_id, q.attempt, q.session_id, q.job_token_hash, q.attempt - q.rejections as used
        """,
        [want.lane.label_set_id for want in wants],
        [want.lane.repository for want in wants],
        [want.session_id for want in wants],
        [want.token_hash for want in wants],
        coordinator,
        ack_timeout_s,
    )
    return [
        Claimed(row["id"], row["run_id"], row["attempt"], row["session_id"], row["job_token_hash"], row["used"])
        for row in rows
    ]


async def places(db: Db, job_ids: Collection[str]) -> list[Place]:
    """Of jobs that have not ended and do not run undisturbed."""
    rows = await db.fetch(
        """
        select j.job_id, j.status, q.label_set_id, coalesce(q.attempt, 0) as attempt,
               coalesce(q.session_id, j.session_id) as session_id,
               coalesce(greatest(extract(epoch from q.not_before - now()), 0), 0)::float8 as due_in_s
          from execution_jobs j left join dispatch_queue q on q.id = j.job_id
         where j.job_id = any($1::uuid[]) and j.status in ('pending', 'queued', 'recovering', 'cancelling')
         order by j.job_id
        """,
        sorted(job_ids),
    )
    return [Place(**{**dict(row), "status": JobStatus(row["status"])}) for row in rows]


async def next_due_s(db: Db) -> float | None:
    """Seconds until the first row may be claimed that waits for its next attempt; None: there is none."""
    due = await db.fetchval(
        """
        select extract(epoch from not_before - now())::float8 from dispatch_queue
         where session_id is null and attempt > 0 and not_before > now() order by not_before limit 1
        """
    )
    return None if due is None else float(due)


async def lock(
    db: Db, job_ids: Collection[str], *, skip_locked: bool = False, wait: bool = True
) -> dict[str, QueueRow]:
    """Lock rows in the order of their ids. With `skip_locked` those that are locked elsewhere are missing; without
    `wait` such a one raises `LockNotAvailableError`."""
    rows = await db.fetch(
        f"""
        select id, run_id, attempt, session_id, accepted_at, rejections
          from dispatch_queue where id = any($1::uuid[]) order by id
           for update {"skip locked" if skip_locked else "" if wait else "nowait"}
        """,  # noqa: S608 - constants
        sorted(job_ids),
    )
    return {row["id"]: QueueRow(**row) for row in rows}


async def existing(db: Db, job_ids: Collection[str]) -> set[str]:
    """Which of these jobs have a row, locked or not."""
    rows = await db.fetch("select id from dispatch_queue where id = any($1::uuid[])", sorted(job_ids))
    return {row["id"] for row in rows}


async def move(db: Db, job_ids: Collection[str], session_id: str, ack_timeout_s: float) -> None:
    """Claims follow their agent to its new session. A claim that is not yet accepted gets a new ack deadline."""
    await db.execute(
        """
        update dispatch_queue
           set session_id = $2,
               ack_deadline = case when accepted_at is null then now() + make_interval(secs => $3) end
         where id = any($1::uuid[])
        """,
        sorted(job_ids),
        session_id,
        ack_timeout_s,
    )


async def release(db: Db, releases: Sequence[Release]) -> None:
    """Back to the lanes, at the place that their age gives them."""
    await db.execute(
        """
        update dispatch_queue q
           set session_id = null, job_token_hash = null, ack_deadline = null, accepted_at = null,
               rejections = q.rejections + r.given_back::int,
               not_before = now() + make_interval(secs => r.delay_s),
               expires_at = now() + make_interval(secs => r.delay_s + r.expires_s)
          from unnest($1::uuid[], $2::float8[], $3::bool[], $4::float8[]) as r (id, delay_s, given_back, expires_s)
         where q.id = r.id
        """,
        [one.job_id for one in releases],
        [one.delay_s for one in releases],
        [one.given_back for one in releases],
        [one.expires_s for one in releases],
    )


async def find_unacknowledged(db: Db, batch: int) -> list[Overdue]:
    """Claims whose ack deadline has passed, oldest first. Nothing is locked: run and job come first in the lock
    order."""
    rows = await db.fetch(
        """
        select id as job_id, run_id, attempt, session_id from dispatch_queue
         where ack_deadline < now() order by ack_deadline limit $1
        """,
        batch,
    )
    return [Overdue(**row) for row in rows]


async def find_expired(db: Db, batch: int) -> list[Overdue]:
    """Free rows that have waited longer than they may, oldest first. Nothing is locked."""
    rows = await db.fetch(
        """
        select id as job_id, run_id, attempt, last_provisioning_error from dispatch_queue
         where session_id is null and expires_at < now() order by expires_at limit $1
        """,
        batch,
    )
    return [Overdue(**row) for row in rows]


async def claims_of(db: Db, sessions: Collection[str]) -> dict[str, QueueRow]:
    """Claimed and accepted rows of these sessions, unlocked."""
    rows = await db.fetch(
        """
        select id, run_id, attempt, session_id, accepted_at, rejections
          from dispatch_queue where session_id = any($1::uuid[])
        """,
        sorted(sessions),
    )
    return {row["id"]: QueueRow(**row) for row in rows}
