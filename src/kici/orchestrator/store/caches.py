"""Entries of caches: whose they are, and what becomes of the objects behind them.

The caller says the owner: a repository as it is reached through one source, and the scopes that may be read there,
the nearest first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from kici.orchestrator.store.database import Db

DEFAULT_BRANCH = ""
"""Scope of the default branch, whatever its name."""
UNTRUSTED = "pr-"
"""So begin the scopes of pull requests that are not trusted, and no others."""
_LAST = "\U0010ffff"
"""Sorts after every other character."""


class Owner(Struct, frozen=True):
    routing_key: str
    repository: str


class NewEntry(Struct, frozen=True):
    id: str
    owner: Owner
    scope: str
    key: str
    object_key: str
    run_id: str
    job_id: str
    size_bytes: int
    part_bytes: int
    sha256: str


class Entry(Struct, frozen=True):
    id: str
    scope: str
    key: str
    object_key: str
    size_bytes: int
    part_bytes: int | None
    """None: it is one object, of a version before parts."""
    sha256: str


class Usage(Struct, frozen=True):
    """Bytes of a repository's entries that can be found."""

    total: int
    trusted: int


_COLUMNS = "id, scope, key, object_key, size_bytes, part_bytes, sha256"


async def lock(db: Db, owner: Owner) -> None:
    """Until the transaction ends, nobody else publishes an entry of this repository."""
    await db.execute(
        "select pg_advisory_xact_lock(hashtextextended('caches ' || $1 || ' ' || $2, 0))",
        owner.routing_key,
        owner.repository,
    )


async def find(db: Db, owner: Owner, scopes: Sequence[str], key: str, ttl: timedelta) -> Entry | None:
    """The entry of exactly this key, of the nearest scope that has one."""
    row = await db.fetchrow(
        f"""
        select {_COLUMNS} from caches
         where routing_key = $1 and repository = $2 and scope = any($3::text[]) and key collate "C" = $4
           and state = 'ready' and used_at > now() - $5::interval
         order by array_position($3::text[], scope) limit 1
        """,  # noqa: S608 - constants
        owner.routing_key,
        owner.repository,
        list(scopes),
        key,
        ttl,
    )
    return None if row is None else Entry(**row)


async def newest(db: Db, owner: Owner, scopes: Sequence[str], prefix: str, ttl: timedelta) -> Entry | None:
    """Of the entries whose key begins like this the one that was made last, in the nearest scope that has one."""
    row = await db.fetchrow(
        f"""
        select {_COLUMNS} from caches
         where routing_key = $1 and repository = $2 and scope = any($3::text[])
           and key collate "C" >= $4 and key collate "C" < $5 and state = 'ready' and used_at > now() - $6::interval
         order by array_position($3::text[], scope), created_at desc, id desc limit 1
        """,  # noqa: S608 - constants
        owner.routing_key,
        owner.repository,
        list(scopes),
        prefix,
        prefix + _LAST,
        ttl,
    )
    return None if row is None else Entry(**row)


async def ready(db: Db, owner: Owner, scopes: Sequence[str], entry_id: str) -> Entry | None:
    """The entry of this id, if it can be found there."""
    row = await db.fetchrow(
        f"""
        select {_COLUMNS} from caches
         where id = $4 and routing_key = $1 and repository = $2 and scope = any($3::text[]) and state = 'ready'
        """,  # noqa: S608 - constants
        owner.routing_key,
        owner.repository,
        list(scopes),
        entry_id,
    )
    return None if row is None else Entry(**row)


async def by_id(db: Db, owner: Owner, scopes: Sequence[str], entry_id: str) -> Entry | None:
    """The same, also if it cannot be found any more while its objects are still there."""
    row = await db.fetchrow(
        f"""
        select {_COLUMNS} from caches
         where id = $4 and routing_key = $1 and repository = $2 and scope = any($3::text[])
        """,  # noqa: S608 - constants
        owner.routing_key,
        owner.repository,
        list(scopes),
        entry_id,
    )
    return None if row is None else Entry(**row)


async def touch(db: Db, entry_id: str) -> None:
    """It was found: at most once a minute that is noted."""
    await db.execute(
        "update caches set used_at = now() where id = $1 and state = 'ready' and used_at < now() - interval '1 minute'",
        entry_id,
    )


async def publish(db: Db, entry: NewEntry) -> None:
    """From now on it is found. The caller holds the repository's lock and has seen that the key is free."""
    await db.execute(
        """
        insert into caches (id, routing_key, repository, scope, key, state, object_key, run_id, job_id, size_bytes,
                            part_bytes, sha256)
        values ($1, $2, $3, $4, $5, 'ready', $6, $7, $8, $9, $10, $11)
        """,
        entry.id,
        entry.owner.routing_key,
        entry.owner.repository,
        entry.scope,
        entry.key,
        entry.object_key,
        entry.run_id,
        entry.job_id,
        entry.size_bytes,
        entry.part_bytes,
        entry.sha256,
    )


async def usage(db: Db, owner: Owner) -> Usage:
    row = await db.fetchrow(
        """
        select coalesce(sum(size_bytes), 0)::bigint as total,
               coalesce(sum(size_bytes) filter (where not starts_with(scope, $3)), 0)::bigint as trusted
          from caches where routing_key = $1 and repository = $2 and state = 'ready'
        """,
        owner.routing_key,
        owner.repository,
        UNTRUSTED,
    )
    assert row
    return Usage(**row)


async def evict(db: Db, owner: Owner, excess: int, *, trusted: bool) -> int:
    """Let entries go until at least `excess` bytes are free: those of untrusted pull requests first, then, if
    `trusted`, the others; of each the longest unused first. Returns how many went."""
    done = await db.execute(
        """
        with going as (
          select id, coalesce(sum(size_bytes) over (
                   order by not starts_with(scope, $5), used_at, id
                   rows between unbounded preceding and 1 preceding), 0) as before
            from caches
           where routing_key = $1 and repository = $2 and state = 'ready' and (starts_with(scope, $5) or $4)
        )
        update caches c set state = 'gone', used_at = now() from going g where c.id = g.id and g.before < $3
        """,
        owner.routing_key,
        owner.repository,
        excess,
        trusted,
        UNTRUSTED,
    )
    return int(done.removeprefix("UPDATE "))


async def drop(db: Db, entry_id: str) -> bool:
    """It is not found from now on, and its object goes. False if it was not there."""
    done = await db.execute(
        "update caches set state = 'gone', used_at = now() where id = $1 and state <> 'gone'", entry_id
    )
    return bool(done == "UPDATE 1")


async def expire(db: Db, ttl: timedelta, batch: int) -> int:
    """Let go what nobody has found for so long. Returns how many."""
    done = await db.execute(
        """
        update caches set state = 'gone', used_at = now()
         where id in (select id from caches where state = 'ready' and used_at < now() - $1::interval
                       order by used_at limit $2 for update skip locked)
        """,
        ttl,
        batch,
    )
    return int(done.removeprefix("UPDATE "))


class Leftover(Struct, frozen=True):
    id: str
    object_key: str
    part_bytes: int | None


async def leftovers(db: Db, *, grace: timedelta, batch: int) -> list[Leftover]:
    """Objects that can go: not found any more for `grace`, in which whoever reads them ends."""
    rows = await db.fetch(
        """
        select id, object_key, part_bytes from caches
         where state <> 'ready' and used_at < now() - $1::interval order by used_at limit $2
        """,
        grace,
        batch,
    )
    return [Leftover(**row) for row in rows]


async def forget(db: Db, entry_ids: Collection[str]) -> None:
    """Their objects are gone."""
    await db.execute("delete from caches where id = any($1::uuid[]) and state <> 'ready'", sorted(entry_ids))


class Listed(Struct, frozen=True):
    id: str
    repository: str
    scope: str
    key: str
    size_bytes: int
    created_at: datetime
    used_at: datetime


async def listed(db: Db, repository: str | None, limit: int) -> list[Listed]:
    """What can be found, the last used first."""
    rows = await db.fetch(
        """
        select id, repository, scope, key, size_bytes, created_at, used_at from caches
         where state = 'ready' and ($1::text is null or repository = $1)
         order by used_at desc, id limit $2
        """,
        repository,
        limit,
    )
    return [Listed(**row) for row in rows]
