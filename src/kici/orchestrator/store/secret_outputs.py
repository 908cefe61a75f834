"""Secret outputs of jobs, sealed: nothing here can read them. They go with their job when its run is removed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Sealed(Struct, frozen=True):
    job_id: str
    """Of the job that really ran: a reused one has none of its own."""
    name: str
    sealed: str
    key_version: int


async def put(db: Db, attempt: int, output: Sealed, *, limit: int) -> bool:
    """Insert or replace an output of this attempt; those of earlier attempts go. False: there are `limit` others.

    The caller holds the attempt (`origins.hold`).
    """
    await db.execute("select pg_advisory_xact_lock(hashtextextended('secret outputs ' || $1::text, 0))", output.job_id)
    await db.execute("delete from secret_outputs where job_id = $1 and attempt < $2", output.job_id, attempt)
    done = await db.execute(
        """
        insert into secret_outputs (job_id, attempt, name, sealed, key_version)
        select $1, $2, $3, $4, $5
         where (select count(*) from secret_outputs where job_id = $1 and attempt = $2 and name <> $3) < $6
            on conflict (job_id, attempt, name) do update
           set sealed = excluded.sealed, key_version = excluded.key_version
        """,
        output.job_id,
        attempt,
        output.name,
        output.sealed,
        output.key_version,
        limit,
    )
    return bool(done == "INSERT 0 1")


async def of_needed(db: Db, job_id: str) -> Sequence[Sealed]:
    """What the jobs that this one needs hand over, in the order of `needs`; of the combinations of a matrix in theirs.

    Only of the last attempt of each.
    """
    rows = await db.fetch(
        """
        select s.job_id, s.name, s.sealed, s.key_version
          from execution_jobs j
          join execution_job_needs n on n.job_id = j.job_id
          join execution_jobs u on u.job_id = n.upstream_job_id
          join secret_outputs s on s.job_id = coalesce(u.reused_from, u.job_id) and s.attempt = u.attempt
         where j.job_id = $1
         order by coalesce((
           select min(w.place) from jsonb_array_elements(j.definition -> 'needs') with ordinality as w (need, place)
            where w.need ->> 'job' = u.base_job_name), 0), u.position, s.name
        """,
        job_id,
    )
    return [Sealed(**row) for row in rows]
