"""Which jobs wait for which."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from asyncpg import Record
from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_JOB
from kici.engine.needs import Need
from kici.orchestrator.store.database import Db


class Waiting(Struct, frozen=True):
    """A job that has not started, with all that it needs."""

    job_id: str
    needs: list[Need]
    """By name: names are unique inside a run."""
    endings: dict[str, str]
    """Of the needed jobs that have ended."""


async def dependants(db: Db, ended: Collection[str]) -> list[Waiting]:
    """Pending jobs that need one of these. The caller holds the lock of their runs."""
    rows = await db.fetch(
        """
        select n.job_id, n.upstream_name, n.run_on, u.status
          from execution_job_needs n
          join execution_jobs u on u.job_id = n.upstream_job_id
         where n.job_id in (
           select d.job_id from execution_job_needs d join execution_jobs j on j.job_id = d.job_id
            where d.upstream_job_id = any($1::uuid[]) and j.status = 'pending')
         order by n.job_id
        """,
        sorted(ended),
    )
    return _waiting(rows)


async def of_pending(db: Db, job_ids: Collection[str]) -> list[Waiting]:
    """Those of these jobs that are pending. The caller holds the lock of their runs."""
    rows = await db.fetch(
        """
        select j.job_id, n.upstream_name, n.run_on, u.status
          from execution_jobs j
          left join execution_job_needs n on n.job_id = j.job_id
          left join execution_jobs u on u.job_id = n.upstream_job_id
         where j.job_id = any($1::uuid[]) and j.status = 'pending'
         order by j.position, j.job_id
        """,
        sorted(job_ids),
    )
    return _waiting(rows)


def _waiting(rows: Sequence[Record]) -> list[Waiting]:
    waiting: dict[str, Waiting] = {}
    for row in rows:
        one = waiting.setdefault(row["job_id"], Waiting(row["job_id"], [], {}))
        if row["upstream_name"] is None:  # it needs nothing
            continue
        one.needs.append(Need(row["upstream_name"], frozenset(row["run_on"])))
        if row["status"] in TERMINAL_JOB:
            one.endings[row["upstream_name"]] = row["status"]
    return list(waiting.values())


async def open_upstream(db: Db, job_ids: Collection[str]) -> dict[str, list[str]]:
    """Job → names of the jobs that it still waits for."""
    rows = await db.fetch(
        """
        select n.job_id, array_agg(n.upstream_name order by u.position) as names
          from execution_job_needs n join execution_jobs u on u.job_id = n.upstream_job_id
         where n.job_id = any($1::uuid[]) and u.status <> all($2::text[])
         group by n.job_id
        """,
        sorted(job_ids),
        sorted(TERMINAL_JOB),
    )
    return {row["job_id"]: row["names"] for row in rows}
