"""Artifacts: names are unique in a run, and what is visible never changes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct

from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import Db


class Artifact(Struct, frozen=True):
    id: str
    run_id: str
    job_id: str
    job_name: str
    attempt: int
    name: str
    object_key: str
    size_bytes: int
    part_bytes: int | None
    """None: it is one object, of a version before parts."""
    sha256: str
    created_at: datetime
    expired_at: datetime | None
    """Since then it is not to be had any more."""


_COLUMNS = """
  a.id, a.run_id, a.job_id, j.job_name, a.attempt, a.name, a.object_key, a.size_bytes, a.part_bytes, a.sha256,
  a.created_at, a.expired_at
"""
_FROM = "artifacts a join execution_jobs j on j.job_id = a.job_id"


class Replaced(Struct, frozen=True):
    """What an older attempt of the same job had made: nobody can reach it any more."""

    id: str
    run_id: str
    job_id: str
    attempt: int
    name: str
    object_key: str
    part_bytes: int | None


class Added(Struct, frozen=True, tag=True):
    replaced: Replaced | None


class Taken(Struct, frozen=True, tag=True):
    by: Artifact


async def add(
    db: Db,
    *,
    artifact_id: str,
    owner: Owner,
    pull_request: int | None,
    run_id: str,
    job_id: str,
    attempt: int,
    name: str,
    object_key: str,
    size_bytes: int,
    part_bytes: int,
    sha256: str,
) -> Added | Taken:
    """Make what was uploaded visible, in the caller's transaction, which holds the attempt.

    An artifact of an older attempt of the same job gives way.
    """
    replaced = await db.fetchrow(
        """
        delete from artifacts where run_id = $1 and name = $2 and job_id = $3 and attempt < $4
        returning id, run_id, job_id, attempt, name, object_key, part_bytes
        """,
        run_id,
        name,
        job_id,
        attempt,
    )
    added = await db.execute(
        """
        insert into artifacts (id, run_id, job_id, attempt, name, object_key, size_bytes, part_bytes, sha256,
                               routing_key, repository, pull_request)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict (run_id, name) do nothing
        """,
        artifact_id,
        run_id,
        job_id,
        attempt,
        name,
        object_key,
        size_bytes,
        part_bytes,
        sha256,
        owner.routing_key,
        owner.repository,
        pull_request,
    )
    if added == "INSERT 0 1":
        return Added(None if replaced is None else Replaced(**replaced))
    taken = await find(db, run_id, name)
    assert taken, "an artifact gives way to a later attempt of its job only, and that is held"
    return Taken(taken)


async def find(db: Db, run_id: str, name: str) -> Artifact | None:
    row = await db.fetchrow(
        f"select {_COLUMNS} from {_FROM} where a.run_id = $1 and a.name = $2",  # noqa: S608 - constants
        run_id,
        name,
    )
    return None if row is None else Artifact(**row)


async def by_id(db: Db, run_id: str, artifact_id: str) -> Artifact | None:
    row = await db.fetchrow(
        f"select {_COLUMNS} from {_FROM} where a.id = $2 and a.run_id = $1",  # noqa: S608 - constants
        run_id,
        artifact_id,
    )
    return None if row is None else Artifact(**row)


async def of_run(db: Db, run_id: str, limit: int = 1000) -> list[Artifact]:
    rows = await db.fetch(
        f"select {_COLUMNS} from {_FROM} where a.run_id = $1 order by a.created_at, a.name limit $2",  # noqa: S608
        run_id,
        limit,
    )
    return [Artifact(**row) for row in rows]


async def expire(db: Db, ttl: timedelta, batch: int) -> int:
    """Let go what was made so long ago, `batch` of them and all rows that name the same objects. Returns how many."""
    done = await db.execute(
        """
        update artifacts set expired_at = now()
         where expired_at is null and object_key <> '' and object_key = any(array(
           select object_key from artifacts where expired_at is null and created_at < now() - $1::interval
            order by created_at limit $2))
        """,
        ttl,
        batch,
    )
    return int(done.removeprefix("UPDATE "))


class Leftover(Struct, frozen=True):
    object_key: str
    part_bytes: int | None


async def leftovers(db: Db, grace: timedelta, batch: int) -> list[Leftover]:
    """What expired at least `grace` ago and still has objects."""
    rows = await db.fetch(
        """
        select object_key, part_bytes from artifacts
         where expired_at < now() - $1::interval and object_key <> '' order by expired_at limit $2
        """,
        grace,
        batch,
    )
    return list(dict.fromkeys(Leftover(**row) for row in rows))


async def forget(db: Db, object_keys: Collection[str]) -> None:
    """These objects are gone."""
    await db.execute(
        """
        update artifacts set object_key = '', expired_at = coalesce(expired_at, now())
         where object_key = any($1::text[]) and object_key <> ''
        """,
        sorted(object_keys),
    )
