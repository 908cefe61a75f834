"""The dispatch queue: open work only. A row lives from the moment its job may start until the job ends.

A lane is (label set, repository); inside it the order is fixed at enqueue by `sort_key`. A row is *free* (no session),
*claimed* by `lanes.claim` (session and ack deadline: sent to an agent) or *accepted* (session, `accepted_at`). A queue
row is the last in the one lock order: whoever also needs the run or the job has locked those before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec import Struct

from kici.engine import labels
from kici.orchestrator.store import label_sets, storable
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
    why: str = ""
    """What became of the attempt."""


class Overdue(Struct, frozen=True):
    job_id: str
    run_id: str
    attempt: int
    session_id: str | None = None
    last_provisioning_error: str | None = None


async def enqueue(db: Db, rows: Sequence[Enqueue]) -> None:
    """Put jobs into their lanes. A job that has its row already is left alone."""
    if not rows:
        return
    sets = await label_sets.ids_of(db, {labels.key(row.requirement): row.requirement for row in rows})
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
               rejections = q.rejections + r.given_back::int, last_loss = coalesce(nullif(r.why, ''), q.last_loss),
               not_before = now() + make_interval(secs => r.delay_s),
               expires_at = now() + make_interval(secs => r.delay_s + r.expires_s)
          from unnest($1::uuid[], $2::float8[], $3::bool[], $4::float8[], $5::text[])
            as r (id, delay_s, given_back, expires_s, why)
         where q.id = r.id
        """,
        [one.job_id for one in releases],
        [one.delay_s for one in releases],
        [one.given_back for one in releases],
        [one.expires_s for one in releases],
        [storable.text(one.why) for one in releases],
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
