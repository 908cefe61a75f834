"""Runs, their jobs and steps, as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api

COUNTED = 10_000
"""A list's total is exact up to here: counting a table of millions for every page would be slow."""

_RUN = """
  r.run_id, r.workflow_name, r.status, r.provider, r.repo_identifier, r.ref, r.sha, r.started_at, r.completed_at,
  r.duration_ms, r.parent_run_id, r.triggered_by, r.cancelled_by, r.failure_reason, r.environment, r.trust_tier,
  r.lock_file_source, r.delivery_id, r.trigger_event, r.commit_message, r.created_at,
  r.original_run_id, r.rerun_mode
"""


class Filter(Struct, frozen=True):
    status: tuple[str, ...] | None = None
    workflow_name: str | None = None
    repo: str | None = None
    since: datetime | None = None
    """Made later than this."""
    id_from: str | None = None
    id_to: str | None = None
    """Both inclusive."""

    def conditions(self) -> Conditions:
        made = Conditions()
        made.add("r.status = any({}::text[])", list(self.status) if self.status is not None else None)
        made.add("r.workflow_name = {}", self.workflow_name)
        made.add("r.repo_identifier = {}", self.repo)
        made.add("r.created_at > {}", self.since)
        made.add("r.run_id >= {}::uuid", self.id_from)
        made.add("r.run_id <= {}::uuid", self.id_to)
        return made


async def listed(db: Db, wanted: Filter, limit: int, offset: int) -> list[api.Run]:
    """Newest first."""
    made = wanted.conditions()
    where = made.where
    rows = await db.fetch(
        f"""
        select {_RUN} from execution_runs r {where}
         order by r.created_at desc, r.id desc limit {made.param(limit)} offset {made.param(offset)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    return [api.Run(**row) for row in rows]


async def count(db: Db, wanted: Filter, *, up_to: int | None = None) -> int:
    made = wanted.conditions()
    where = made.where
    limit = "" if up_to is None else f"limit {made.param(up_to)}"
    return int(
        await db.fetchval(
            f"select count(*) from (select from execution_runs r {where} {limit}) counted",  # noqa: S608 - constants
            *made.values,
        )
    )


async def one(db: Db, run_id: str) -> api.Run | None:
    row = await db.fetchrow(
        f"""
        select {_RUN}, nullif(r.trigger_decision ->> 'changed', '') as changed,
               nullif(r.trigger_decision ->> 'changedBase', '') as changed_base
          from execution_runs r where r.run_id = $1
        """,  # noqa: S608 - constants
        run_id,
    )
    return None if row is None else api.Run(**row)


async def status(db: Db, run_id: str) -> str | None:
    found: str | None = await db.fetchval("select status from execution_runs where run_id = $1", run_id)
    return found


async def jobs(db: Db, run_id: str, *, steps: bool) -> list[api.Job]:
    """In the order of the workflow; with the steps of the current attempt, if asked for. Without waiting reasons."""
    rows = await db.fetch(
        """
        select j.job_id, j.job_name, j.base_job_name, j.status, j.attempt, j.matrix_values, j.agent_id, j.started_at,
               j.completed_at, j.duration_ms, j.error_message, j.reason, j.exit_code, j.signal, j.peak_memory_bytes,
               coalesce(j.runs_on_labels, '[]') as runs_on_labels,
               j.outputs, j.created_at, o.run_id as reused_from_run_id,
               coalesce((select array_agg(distinct n.upstream_name order by n.upstream_name)
                           from execution_job_needs n where n.job_id = j.job_id), '{}') as needs
          from execution_jobs j left join execution_jobs o on o.job_id = j.reused_from
         where j.run_id = $1 order by j.position, j.job_id
        """,
        run_id,
    )
    found = await _steps(db, run_id) if steps else {}
    return [api.Job(**row, steps=found.get(row["job_id"], []) if steps else None) for row in rows]


async def _steps(db: Db, run_id: str) -> dict[str, list[api.Step]]:
    rows = await db.fetch(
        """
        select s.job_id, s.step_index, s.step_name, s.status, s.step_type, s.step_attempt as attempt, s.started_at,
               s.completed_at, s.duration_ms, s.exit_code, s.error_message, s.reason, s.signal,
               s.last_lines, s.peak_memory_bytes, s.continue_on_error,
               coalesce(s.annotations, '[]') as annotations, s.summary
          from execution_jobs j join execution_steps s on s.job_id = j.job_id
         where j.run_id = $1 and s.attempt = greatest(j.attempt, 1)
         order by s.job_id, s.step_index
        """,
        run_id,
    )
    found: dict[str, list[api.Step]] = {}
    for row in rows:
        values: dict[str, Any] = dict(row)
        values["annotations"] = [api.Annotation(**one) for one in values["annotations"]]
        found.setdefault(values.pop("job_id"), []).append(api.Step(**values))
    return found
