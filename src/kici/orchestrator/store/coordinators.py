"""One row for each coordinator that lives: its lease covers it and all its agents' sessions."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Coordinator(Struct, frozen=True):
    instance: str
    url: str
    version: str
    lease_since: datetime
    """Since when the lease has been held without a gap."""
    lease_expires_at: datetime


async def renew(db: Db, instance: str, ttl: timedelta, *, version: str, url: str) -> datetime:
    """Take the lease or extend it by `ttl` from now; answers since when it has been held without a gap."""
    since: datetime = await db.fetchval(
        """
        insert into coordinators as c (instance, lease_expires_at, version, url)
        values ($1, clock_timestamp() + $2::interval, $3, $4)
        on conflict (instance) do update
           set lease_since = case when c.lease_expires_at < clock_timestamp() then clock_timestamp()
                                  else c.lease_since end,
               lease_expires_at = excluded.lease_expires_at,
               version = excluded.version,
               url = excluded.url
        returning lease_since
        """,
        instance,
        ttl,
        version,
        url,
    )
    return since


async def leave(db: Db, instance: str) -> None:
    """End the lease now: an orderly stop, after which others need not wait for it to run out."""
    await db.execute(
        "update coordinators set lease_expires_at = clock_timestamp() where instance = $1 and lease_expires_at > now()",
        instance,
    )


async def living(db: Db) -> list[Coordinator]:
    """Those whose lease holds, by name."""
    rows = await db.fetch(
        """
        select instance, url, version, lease_since, lease_expires_at
          from coordinators
         where lease_expires_at > now()
         order by instance
        """
    )
    return [Coordinator(**row) for row in rows]


async def forget(db: Db, *, gone_for: timedelta) -> int:
    """Delete coordinators whose lease ran out that long ago and that have no open session left. Returns how many.

    Each start of a process is another instance, so they would pile up.
    """
    done = await db.execute(
        """
        delete from coordinators c
         where c.lease_expires_at < now() - $1::interval
           and not exists (select from agent_sessions s where s.coordinator = c.instance and s.closed_at is null)
        """,
        gone_for,
    )
    return int(done.rsplit(" ", 1)[1])
