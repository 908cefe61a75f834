"""The states of runs. Only `lifecycle` writes them, on rows that it has locked first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_JOB, JobStatus, RunStatus
from kici.orchestrator.store.completions import RUN_HEARD
from kici.orchestrator.store.database import Db


class Run(Struct, frozen=True):
    run_id: str
    status: RunStatus
    workflow_name: str
    repo_identifier: str
    concurrency_scope: str | None = None
    """Set if the run, or a job of it, names a concurrency group: see `store.concurrency`."""
    concurrency_group: str | None = None
    """Of the whole run."""


class Ending(Struct, frozen=True):
    run_id: str
    status: RunStatus
    failure_reason: str | None = None
    """Does not replace one that stands there already."""


COLUMNS = "run_id, status, workflow_name, repo_identifier, concurrency_scope, concurrency_group"


async def lock(db: Db, run_ids: Collection[str], *, skip_locked: bool = False, wait: bool = True) -> dict[str, Run]:
    """Lock rows in the order of their ids. With `skip_locked` those that are locked elsewhere are missing; without
    `wait` such a one raises `LockNotAvailableError`."""
    rows = await db.fetch(
        f"""
        select {COLUMNS} from execution_runs
         where run_id = any($1::uuid[]) order by run_id
           for no key update {"skip locked" if skip_locked else "" if wait else "nowait"}
        """,  # noqa: S608 - constants
        sorted(run_ids),
    )
    return {row["run_id"]: _run(row) for row in rows}


async def scopes(db: Db, run_ids: Collection[str]) -> dict[str, str | None]:
    """Run → scope of its concurrency groups, which never changes; unlocked. Unknown runs are missing."""
    rows = await db.fetch(
        "select run_id, concurrency_scope from execution_runs where run_id = any($1::uuid[])", sorted(run_ids)
    )
    return {row["run_id"]: row["concurrency_scope"] for row in rows}


async def cancelling(db: Db, run_id: str, *, by: str, reason: str) -> None:
    """Write down who asked for it and why; the status follows from the jobs."""
    await db.execute(
        """
        update execution_runs
           set cancelled_by = coalesce(cancelled_by, $2), failure_reason = coalesce(failure_reason, $3)
         where run_id = $1
        """,
        run_id,
        by,
        reason,
    )


async def set_status(db: Db, run_id: str, status: RunStatus) -> None:
    await db.execute("update execution_runs set status = $2 where run_id = $1", run_id, str(status))


async def end(db: Db, endings: Sequence[Ending]) -> set[str]:
    """Returns those of whose end a workflow may want to be told."""
    rows = await db.fetch(
        f"""
        update execution_runs r
           set status = e.status, completed_at = now(), started_at = coalesce(r.started_at, now()),
               duration_ms = least(extract(epoch from now() - coalesce(r.started_at, now())) * 1000, 2147483647)::int,
               failure_reason = case when e.status <> 'success' then coalesce(r.failure_reason, e.reason, (
                 select min(j.error_message) from execution_jobs j
                  where e.status = 'cancelled' and j.run_id = r.run_id and j.status = 'cancelled')) end
          from unnest($1::uuid[], $2::text[], $3::text[]) as e (run_id, status, reason)
         where r.run_id = e.run_id
        returning r.run_id, {RUN_HEARD} as heard
        """,  # noqa: S608 - constants
        [one.run_id for one in endings],
        [str(one.status) for one in endings],
        [one.failure_reason for one in endings],
    )
    return {row["run_id"] for row in rows if row["heard"]}


async def endings_of_jobs(db: Db, run_ids: Collection[str]) -> dict[str, dict[str, JobStatus]]:
    """Run → (job name → status) of those of these runs whose jobs have all ended."""
    rows = await db.fetch(
        """
        with over as materialized (
          select run_id from unnest($1::uuid[]) as r (run_id)
           where not (select exists (select from execution_jobs o
                                      where o.run_id = r.run_id and o.status <> all($2::text[])))
        )
        select j.run_id, j.job_name, j.status
          from over
         cross join lateral (
           select run_id, job_name, status from execution_jobs where run_id = over.run_id
           offset 0 -- run by run, by the index
         ) j
        """,
        sorted(run_ids),
        sorted(TERMINAL_JOB),
    )
    found: dict[str, dict[str, JobStatus]] = {}
    for row in rows:
        found.setdefault(row["run_id"], {})[row["job_name"]] = JobStatus(row["status"])
    return found


def _run(row: Any) -> Run:
    return msgspec.convert(dict(row), Run)
