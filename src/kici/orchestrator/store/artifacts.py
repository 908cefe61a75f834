"""Artifacts: names are unique in a run, and what is visible never changes."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Artifact(Struct, frozen=True):
    run_id: str
    job_id: str
    job_name: str
    attempt: int
    name: str
    object_key: str
    size_bytes: int
    sha256: str
    created_at: datetime


_COLUMNS = "a.run_id, a.job_id, j.job_name, a.attempt, a.name, a.object_key, a.size_bytes, a.sha256, a.created_at"
_FROM = "artifacts a join execution_jobs j on j.job_id = a.job_id"


class Added(Struct, frozen=True, tag=True):
    replaced_key: str | None
    """Object of an older attempt of the same job, which nobody can reach any more."""


class Taken(Struct, frozen=True, tag=True):
    by: Artifact


class Over(Struct, frozen=True, tag=True):
    """The attempt is not the job's current one any more, or has ended."""


async def add(
    db: Db, *, job_id: str, attempt: int, name: str, object_key: str, size_bytes: int, sha256: str
) -> Added | Taken | Over:
    """Make an uploaded object visible, in the caller's transaction.

    Locks the job against a new attempt. An artifact of an older attempt of the same job gives way.
    """
    run_id = await db.fetchval(
        """
        select run_id from execution_jobs
         where job_id = $1 and attempt = $2 and status in ('running', 'recovering', 'cancelling') for share
        """,
        job_id,
        attempt,
    )
    if run_id is None:
        return Over()
    replaced = await db.fetchval(
        "delete from artifacts where run_id = $1 and name = $2 and job_id = $3 and attempt < $4 returning object_key",
        run_id,
        name,
        job_id,
        attempt,
    )
    added = await db.execute(
        """
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
        values ($1, $2, $3, $4, $5, $6, $7) on conflict (run_id, name) do nothing
        """,
        run_id,
        job_id,
        attempt,
        name,
        object_key,
        size_bytes,
        sha256,
    )
    if added == "INSERT 0 1":
        return Added(replaced)
    taken = await find(db, run_id, name)
    return Over() if taken is None else Taken(taken)


async def find(db: Db, run_id: str, name: str) -> Artifact | None:
    row = await db.fetchrow(
        f"select {_COLUMNS} from {_FROM} where a.run_id = $1 and a.name = $2",  # noqa: S608 - constants
        run_id,
        name,
    )
    return None if row is None else Artifact(**row)


async def of_run(db: Db, run_id: str, limit: int = 1000) -> list[Artifact]:
    rows = await db.fetch(
        f"select {_COLUMNS} from {_FROM} where a.run_id = $1 order by a.created_at, a.name limit $2",  # noqa: S608
        run_id,
        limit,
    )
    return [Artifact(**row) for row in rows]
