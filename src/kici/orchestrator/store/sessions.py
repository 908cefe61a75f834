"""Sessions of agents: one per socket that said hello, longer than the socket, shorter than the agent.

A session is open until its agent says goodbye, comes back under a newer one, or is settled as lost. `lost_at` is set
while the agent is silent. Session rows are locked before runs, jobs and queue rows. Nothing is written per heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.store.database import Db


class NewSession(Struct, frozen=True):
    id: str
    agent_id: str
    boot_id: str
    token_id: str | None
    coordinator: str
    protocol: int
    version: str
    labels: tuple[str, ...]
    slots: int
    facts: dict[str, Any] = {}
    draining: bool = False


class Session(Struct, frozen=True):
    id: str
    agent_id: str
    token_id: str | None
    coordinator: str
    lost: bool
    closed: bool
    alive: bool
    """Its coordinator has its lease."""


class Heard(Struct, frozen=True):
    agent_id: str
    last_seen_at: datetime


_COLUMNS = """
  id, agent_id, token_id, coordinator, lost_at is not null as lost, closed_at is not null as closed,
  exists (select from coordinators c where c.instance = coordinator and c.lease_expires_at > now()) as alive
"""


class Silent(Struct, frozen=True):
    """A session whose coordinator is gone."""

    id: str
    agent_id: str
    coordinator: str
    heard_s: float
    """Seconds since the coordinator could last have acknowledged a heartbeat."""


class Connected(Struct, frozen=True):
    """An agent as everybody sees it."""

    session_id: str
    agent_id: str
    labels: frozenset[str]
    slots: int
    used: int
    draining: bool
    not_taking: str
    """Why it takes no job for now; empty = it does."""


async def hold_lease(db: Db, coordinator: str) -> datetime:
    """Raise `LeaseLost` unless this coordinator's lease holds; nobody takes its sessions before the transaction
    ends. Answers the database's time."""
    now: datetime | None = await db.fetchval(
        """
        select clock_timestamp() from coordinators
         where instance = $1 and lease_expires_at > clock_timestamp() for key share
        """,
        coordinator,
    )
    if now is None:
        raise LeaseLost(f"coordinator {coordinator}")
    return now


async def lock_agent(db: Db, agent_id: str) -> list[Session]:
    """Its open sessions, locked; of two hellos at once the second waits until the first has committed."""
    await db.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"agent {agent_id}")
    rows = await db.fetch(
        f"""
        select {_COLUMNS} from agent_sessions where agent_id = $1 and closed_at is null
         order by id for no key update
        """,  # noqa: S608 - constants
        agent_id,
    )
    return [Session(**row) for row in rows]


async def of_agent(db: Db, agent_id: str) -> list[Session]:
    """Its open sessions, as they are now: nothing is locked."""
    rows = await db.fetch(
        f"select {_COLUMNS} from agent_sessions where agent_id = $1 and closed_at is null",  # noqa: S608 - constants
        agent_id,
    )
    return [Session(**row) for row in rows]


async def lock(db: Db, ids: Collection[str]) -> list[Session]:
    """Open sessions among these, locked in the order of their ids."""
    rows = await db.fetch(
        f"""
        select {_COLUMNS} from agent_sessions where id = any($1::uuid[]) and closed_at is null
         order by id for no key update
        """,  # noqa: S608 - constants
        sorted(ids),
    )
    return [Session(**row) for row in rows]


async def states(db: Db, ids: Collection[str], *, keep: bool = False) -> dict[str, Session]:
    """With `keep`, none of them is lost or closed until the transaction ends; those being written now are missing."""
    rows = await db.fetch(
        f"""
        select {_COLUMNS} from agent_sessions where id = any($1::uuid[])
         order by id {"for share skip locked" if keep else ""}
        """,  # noqa: S608 - constants
        sorted(ids),
    )
    return {row["id"]: Session(**row) for row in rows}


async def insert(db: Db, new: NewSession) -> None:
    await db.execute(
        """
        insert into agent_sessions
          (id, agent_id, boot_id, token_id, coordinator, protocol, version, labels, slots, facts, draining)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        """,
        new.id,
        new.agent_id,
        new.boot_id,
        new.token_id,
        new.coordinator,
        new.protocol,
        new.version,
        list(new.labels),
        new.slots,
        new.facts,
        new.draining,
    )


async def close(db: Db, ids: Collection[str]) -> None:
    await db.execute(
        "update agent_sessions set closed_at = now() where id = any($1::uuid[]) and closed_at is null", sorted(ids)
    )


async def lose(db: Db, session_id: str, *, heard_s: float) -> None:
    await db.execute(
        """
        update agent_sessions set lost_at = now(), last_seen_at = now() - make_interval(secs => $2) where id = $1
        """,
        session_id,
        heard_s,
    )


async def regain(db: Db, ids: Collection[str]) -> None:
    await db.execute(
        "update agent_sessions set lost_at = null, last_seen_at = now() where id = any($1::uuid[])", sorted(ids)
    )


async def set_draining(db: Db, session_id: str, draining: bool) -> None:
    await db.execute("update agent_sessions set draining = $2 where id = $1", session_id, draining)


async def set_not_taking(db: Db, session_id: str, why: str) -> None:
    """Empty = it takes jobs again. Kept with what the agent says of its machine."""
    await db.execute(
        """
        update agent_sessions
           set facts = case when $2 = '' then facts - 'not_taking'
                            else facts || jsonb_build_object('not_taking', $2::text) end
         where id = $1
        """,
        session_id,
        why,
    )


async def find_silent(db: Db, batch: int) -> list[Silent]:
    """Sessions that are not lost yet and whose coordinator has no lease any more. Nothing is locked."""
    rows = await db.fetch(
        """
        select s.id, s.agent_id, s.coordinator,
               extract(epoch from now() - coalesce(c.lease_expires_at, s.last_seen_at))::float8 as heard_s
          from agent_sessions s left join coordinators c on c.instance = s.coordinator
         where s.closed_at is null and s.lost_at is null and coalesce(c.lease_expires_at, '-infinity') < now()
         order by s.id limit $1
        """,
        batch,
    )
    return [Silent(**row) for row in rows]


async def still_silent(db: Db, session: Silent) -> bool:
    """Whether its coordinator's lease is lapsed, and stays so until the transaction ends."""
    held = await db.fetchval(
        "select lease_expires_at >= clock_timestamp() from coordinators where instance = $1 for update",
        session.coordinator,
    )
    return not held


async def close_settled(db: Db, *, lost_for_s: float) -> int:
    """Close sessions that were lost that long ago and have no attempt left."""
    done = await db.execute(
        """
        update agent_sessions s set closed_at = now()
         where s.closed_at is null and s.lost_at < now() - make_interval(secs => $1)
           and not exists (select from execution_jobs j where j.session_id = s.id
                              and j.status in ('running', 'recovering', 'cancelling'))
           and not exists (select from dispatch_queue q where q.session_id = s.id)
        """,
        lost_for_s,
    )
    return int(done.rsplit(" ", 1)[1])


async def forget(db: Db, *, closed_for: timedelta, batch: int) -> int:
    """Delete up to `batch` sessions that were closed that long ago, the longest closed first. Returns how many.

    A job that runs, recovers or is being cancelled keeps its session.
    """
    done = await db.execute(
        """
        delete from agent_sessions where id in (
          select s.id from agent_sessions s
           where s.closed_at < now() - $1::interval
             and not exists (select from execution_jobs j where j.session_id = s.id
                                and j.status in ('running', 'recovering', 'cancelling'))
             and not exists (select from dispatch_queue q where q.session_id = s.id)
           order by s.closed_at limit $2 for update of s skip locked)
        """,
        closed_for,
        batch,
    )
    return int(done.rsplit(" ", 1)[1])


async def present(db: Db, ids: Collection[str]) -> set[str]:
    """Those of these sessions whose agents are there, unlocked."""
    rows = await db.fetch(
        "select id from agent_sessions where id = any($1::uuid[]) and closed_at is null and lost_at is null",
        sorted(ids),
    )
    return {row["id"] for row in rows}


async def connected(db: Db) -> list[Connected]:
    """Agents of all coordinators that are not silent, with the slots that attempts hold."""
    rows = await db.fetch(
        """
        select s.id as session_id, s.agent_id, s.labels, s.slots, s.draining,
               coalesce(s.facts ->> 'not_taking', '') as not_taking,
               (select count(*) from dispatch_queue q where q.session_id = s.id) as used
          from agent_sessions s where s.closed_at is null and s.lost_at is null
        """
    )
    return [Connected(**{**dict(row), "labels": frozenset(row["labels"])}) for row in rows]


async def heard(db: Db, ids: Sequence[str]) -> dict[str, Heard]:
    """Session → whose it is and when that agent was last heard, so far as it was written down."""
    rows = await db.fetch(
        "select id, agent_id, last_seen_at from agent_sessions where id = any($1::uuid[])", sorted(set(ids))
    )
    return {row["id"]: Heard(row["agent_id"], row["last_seen_at"]) for row in rows}
