"""Runs and jobs that take longer than they may.

A run's deadline is set when it starts, a job's each time an agent accepts it. A job's is a backstop: its agent has the
job's timeout too and stops it earlier. A silent agent's job has deadlines of its own, so only `running` counts here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from kici.orchestrator.store.database import Db


class OverdueRun(Struct, frozen=True):
    run_id: str
    timeout_ms: int


async def find_runs(db: Db, batch: int) -> list[OverdueRun]:
    """Longest overdue first. Nothing is locked. Runs that are being cancelled already are left out."""
    rows = await db.fetch(
        """
        select run_id, workflow_timeout_ms as timeout_ms from execution_runs
         where deadline is not null and status in ('pending', 'running') and deadline < now()
         order by deadline limit $1
        """,
        batch,
    )
    return [OverdueRun(**row) for row in rows]


async def find_jobs(db: Db, batch: int) -> list[str]:
    """Longest overdue first. Nothing is locked."""
    rows = await db.fetch(
        """
        select job_id from execution_jobs
         where deadline is not null and status = 'running' and deadline < now()
         order by deadline limit $1
        """,
        batch,
    )
    return [row["job_id"] for row in rows]


async def passed(db: Db, job_ids: Collection[str], default_ms: int | None) -> dict[str, int]:
    """Of locked jobs: those that are overdue still, each with its timeout in milliseconds."""
    rows = await db.fetch(
        """
        select job_id, coalesce((definition ->> 'timeoutMs')::bigint, $2::bigint, 0) as timeout_ms
          from execution_jobs where job_id = any($1::uuid[]) and status = 'running' and deadline < now()
        """,
        sorted(job_ids),
        default_ms,
    )
    return {row["job_id"]: row["timeout_ms"] for row in rows}


async def time_out(db: Db, reasons: Mapping[str, str]) -> None:
    """Remember that these jobs (job → why) end as failed, however their agents say that they stopped."""
    await db.execute(
        """
        update execution_jobs j set timed_out = t.reason
          from unnest($1::uuid[], $2::text[]) as t (job_id, reason) where j.job_id = t.job_id
        """,
        list(reasons),
        list(reasons.values()),
    )


async def force(db: Db, job_ids: Collection[str], *, margin_s: float) -> None:
    """Jobs that are being cancelled: their agents are to kill now, and have this long to say so."""
    await db.execute(
        """
        update execution_jobs
           set cancel_force = true, cancel_requested_at = coalesce(cancel_requested_at, now()),
               cancel_deadline = now() + make_interval(secs => $2)
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
        margin_s,
    )
