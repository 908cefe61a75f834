"""Concurrency groups: rows of holders (`active`) and waiters (`queued`), each a whole run or one job.

Groups live in a *scope*, `<routing key>::<repository>`, and for an untrusted pull request one of its own. Whoever
changes rows here, ends or starts jobs of a run with a scope, or waits for such a run's row, holds the scope's lock,
which comes before runs in the one lock order. It is one lock for all groups of a scope because a slot that is handed
over may start a run whose jobs join other groups, whose holders may then have to stop, and so on: all of them are runs
of the same scope, so nothing outside it is ever needed, and inside it nobody else waits. Most runs have no scope and
cost nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

import msgspec
from msgspec import Struct

from kici.engine.concurrency import Entry, Policy
from kici.orchestrator.store.database import Db


class Group(Struct, frozen=True, order=True):
    scope: str
    name: str


class Arrival(Struct, frozen=True):
    """A run (`job_id` None) or a job that joins its group."""

    id: str
    group: Group
    run_id: str
    job_id: str | None
    policy: Policy
    starts: bool


class Slot(Struct, frozen=True):
    """Whose row it is."""

    id: str
    run_id: str
    job_id: str | None


class Standing(Struct, frozen=True):
    """A group as it stands, each part in the order of arrival."""

    holders: list[Entry]
    waiters: list[Entry]
    slots: dict[str, Slot]


async def lock_scopes(db: Db, scopes: Collection[str]) -> None:
    """Wait for these scopes, in one order for everybody; they are held until the transaction ends."""
    if scopes:
        await db.execute(
            """
            select pg_advisory_xact_lock(key)
              from (select distinct hashtextextended('concurrency ' || s.scope, 0) as key
                      from unnest($1::text[]) as s (scope) order by 1 offset 0) ordered
            """,
            sorted(scopes),
        )


async def try_lock_scopes(db: Db, scopes: Collection[str]) -> set[str]:
    """Those of these scopes that could be had at once; the others are locked elsewhere."""
    if not scopes:
        return set()
    rows = await db.fetch(
        """
        select scope from unnest($1::text[]) as s (scope)
         where pg_try_advisory_xact_lock(hashtextextended('concurrency ' || scope, 0))
        """,
        sorted(scopes),
    )
    return {row["scope"] for row in rows}


async def standing(db: Db, group: Group) -> Standing:
    rows = await db.fetch(
        """
        select g.id, g.run_id, g.job_id, g.status, g.max_active, g.keep_latest,
               coalesce(case when g.job_id is null then r.status else j.status end = 'cancelling', false) as stopping
          from concurrency_groups g
          left join execution_runs r on r.run_id = g.run_id and g.status = 'active'
          left join execution_jobs j on j.job_id = g.job_id and g.status = 'active'
         where g.routing_key = $1 and g.group_key = $2 and g.status in ('active', 'queued')
         order by g.arrival
        """,
        group.scope,
        group.name,
    )
    entries = [
        (row["status"], Entry(row["id"], row["run_id"], row["max_active"], row["keep_latest"], row["stopping"]))
        for row in rows
    ]
    return Standing(
        [entry for status, entry in entries if status == "active"],
        [entry for status, entry in entries if status == "queued"],
        {row["id"]: Slot(row["id"], row["run_id"], row["job_id"]) for row in rows},
    )


async def insert(db: Db, arrivals: Sequence[Arrival]) -> None:
    """In this order."""
    await db.execute(
        """
        insert into concurrency_groups (id, group_key, routing_key, run_id, job_id, status, max_active, keep_latest,
                                        activated_at)
        select a.id, a.name, a.scope, a.run_id, a.job_id, case when a.starts then 'active' else 'queued' end, a.max,
               a.keep_latest, case when a.starts then now() end
          from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::bool[], $7::int[], $8::bool[])
               with ordinality as a (id, name, scope, run_id, job_id, starts, max, keep_latest, number)
         order by a.number
        """,
        [one.id for one in arrivals],
        [one.group.name for one in arrivals],
        [one.group.scope for one in arrivals],
        [one.run_id for one in arrivals],
        [one.job_id for one in arrivals],
        [one.starts for one in arrivals],
        [one.policy.max for one in arrivals],
        [one.policy.keeps_latest for one in arrivals],
    )


async def activate(db: Db, ids: Collection[str]) -> None:
    """Waiters become holders."""
    await db.execute(
        "update concurrency_groups set status = 'active', activated_at = now() where id = any($1::uuid[])", sorted(ids)
    )


async def close_jobs(db: Db, job_ids: Collection[str], run_ids: Collection[str]) -> set[Group]:
    """Jobs, all of these runs, have ended: they hold and wait no longer. Returns their groups."""
    return await _close(db, "job_id is not null", job_ids, run_ids)


async def close_runs(db: Db, run_ids: Collection[str]) -> set[Group]:
    """The same of whole runs."""
    return await _close(db, "job_id is null", run_ids, run_ids)


async def _close(db: Db, kind: str, ids: Collection[str], run_ids: Collection[str]) -> set[Group]:
    rows = await db.fetch(
        f"""
        update concurrency_groups
           set status = case when status = 'active' then 'completed' else 'cancelled' end, completed_at = now()
         where run_id = any($1::uuid[]) and coalesce(job_id, run_id) = any($2::uuid[]) and {kind}
           and status in ('active', 'queued')
        returning routing_key, group_key
        """,  # noqa: S608 - one of two constants
        sorted(run_ids),
        sorted(ids),
    )
    return {Group(row["routing_key"], row["group_key"]) for row in rows}


async def close(db: Db, ids: Collection[str], *, released_by: str | None = None) -> None:
    """These rows hold and wait no longer, whatever their runs and jobs do."""
    await db.execute(
        """
        update concurrency_groups
           set status = case when status = 'active' then 'completed' else 'cancelled' end, completed_at = now(),
               released_by = $2
         where id = any($1::uuid[]) and status in ('active', 'queued')
        """,
        sorted(ids),
        released_by,
    )


async def forget(db: Db, *, closed_for: timedelta, batch: int) -> int:
    """Delete up to `batch` rows that neither hold nor wait any more. Returns how many."""
    done = await db.execute(
        """
        delete from concurrency_groups where id in (
          select id from concurrency_groups where completed_at < now() - $1::interval
           order by completed_at limit $2 for update skip locked)
        """,
        closed_for,
        batch,
    )
    return int(done.removeprefix("DELETE "))


async def of_runs(db: Db, run_ids: Collection[str]) -> dict[str, str]:
    """Run → `active` or `queued` in its own group, of those that stand in one."""
    rows = await db.fetch(
        """
        select run_id, status from concurrency_groups
         where run_id = any($1::uuid[]) and job_id is null and status in ('active', 'queued')
        """,
        sorted(run_ids),
    )
    return {row["run_id"]: row["status"] for row in rows}


async def policies_of_runs(db: Db, run_ids: Collection[str]) -> dict[str, Policy]:
    rows = await db.fetch(
        "select run_id, concurrency from execution_runs where run_id = any($1::uuid[]) and concurrency is not null",
        sorted(run_ids),
    )
    return {row["run_id"]: msgspec.convert(row["concurrency"], Policy) for row in rows}


async def policies_of_jobs(db: Db, job_ids: Collection[str]) -> dict[str, Policy]:
    rows = await db.fetch(
        "select job_id, concurrency from execution_jobs where job_id = any($1::uuid[]) and concurrency is not null",
        sorted(job_ids),
    )
    return {row["job_id"]: msgspec.convert(row["concurrency"], Policy) for row in rows}


_ENDED = """
  (r.run_id is null or r.status in ('success', 'failed', 'cancelled')
   or (g.job_id is not null and (j.job_id is null or j.completed_at is not null)))
"""


async def find_ended(db: Db, batch: int) -> list[Group]:
    """Groups with a holder or waiter that has ended, or whose run is gone. Nothing is locked."""
    rows = await db.fetch(
        f"""
        select distinct g.routing_key, g.group_key
          from concurrency_groups g
          left join execution_runs r on r.run_id = g.run_id
          left join execution_jobs j on j.job_id = g.job_id
         where g.status in ('active', 'queued') and {_ENDED}
         limit $1
        """,  # noqa: S608 - constants
        batch,
    )
    return [Group(row["routing_key"], row["group_key"]) for row in rows]


async def ended_among(db: Db, group: Group) -> set[str]:
    """Open rows of the group whose run or job has ended, or is gone."""
    rows = await db.fetch(
        f"""
        select g.id
          from concurrency_groups g
          left join execution_runs r on r.run_id = g.run_id
          left join execution_jobs j on j.job_id = g.job_id
         where g.routing_key = $1 and g.group_key = $2 and g.status in ('active', 'queued') and {_ENDED}
        """,  # noqa: S608 - constants
        group.scope,
        group.name,
    )
    return {row["id"] for row in rows}


async def find_idle(db: Db, batch: int) -> list[Group]:
    """Groups in which the first waiter would fit. Nothing is locked."""
    rows = await db.fetch(
        """
        select routing_key, group_key
          from (select routing_key, group_key, status, max_active, arrival,
                       min(arrival) filter (where status = 'queued')
                         over (partition by routing_key, group_key) as first_waiter
                  from concurrency_groups where status in ('active', 'queued')) g
         where first_waiter is not null
         group by routing_key, group_key
        having count(*) filter (where status = 'active')
               < min(max_active) filter (where status = 'active' or arrival = first_waiter)
         limit $1
        """,
        batch,
    )
    return [Group(row["routing_key"], row["group_key"]) for row in rows]
