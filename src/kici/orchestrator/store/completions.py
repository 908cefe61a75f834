"""The ends of runs and jobs that a workflow on some default branch wants to be told of.

Such an end has its row in the event log from the same commit: `provider` is `completion`, `event` is the kind,
`action` how it ended, `routing_key`, `repo_identifier` and `ref` are those of the run, and the body is `Completion`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from asyncpg import Record
from msgspec import Struct

from kici.engine.completions import ANY, JOB, WORKFLOW, key
from kici.engine.evaluation import PREFIX
from kici.orchestrator.store import events
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import NewEvent

PROVIDER: Final = "completion"
"""Of the event's row. No source has this provider, so no webhook can pass for the end of a workflow."""


def _heard(kind: str) -> str:
    return f"""
      coalesce(r.trust_tier, '') <> 'unknown'
      and 0 < (select count(*) -- for `exists`, the planner hopes to find one soon without the index
                 from workflow_registrations w
                where w.listens_to && array['{key(kind, ANY)}', '{key(kind, "")}' || r.workflow_name]
                  and not w.disabled)
    """  # noqa: S608 - constants


RUN_HEARD: Final = _heard(WORKFLOW)
"""SQL: a workflow may want to be told of the end of run `r`. Nobody is told of what a pull request did: that would
start workflows of the default branch."""
JOB_HEARD: Final = _heard(JOB)
"""The same for the end of a job of run `r`."""


class Completion(Struct, frozen=True, rename="camel"):
    """Body of the event."""

    workflow: str
    status: str
    repo: str
    run_id: str
    sha: str
    """Of the run, not what the runs that it starts check out."""
    chain_depth: int
    """One more than that of the event that the run had."""
    payload: dict[str, Any]
    """As `ctx.payload` shows it."""
    job: str = ""
    """Without the matrix suffix; empty if it is about the whole run."""


async def of_runs(db: Db, run_ids: Collection[str]) -> list[NewEvent]:
    """Events of those of these ended runs of whose end somebody wants to be told."""
    rows = await db.fetch(
        f"""
        select {_OF_RUN}, r.run_id as id, '' as job, r.status,
               jsonb_build_object(
                 'workflowName', r.workflow_name, 'runId', r.run_id, 'status', r.status, 'ref', r.ref, 'sha', r.sha,
                 'failureReason', r.failure_reason, 'durationMs', coalesce(r.duration_ms, 0),
                 'jobResults', coalesce((
                   select jsonb_agg(jsonb_build_object('name', j.job_name, 'status', j.status)
                                    order by j.position, j.job_id)
                     from execution_jobs j where j.run_id = r.run_id and not starts_with(j.job_name, $2)), '[]')
               ) as payload
          from execution_runs r
         where r.run_id = any($1::uuid[]) and {RUN_HEARD}
         order by r.run_id
        """,  # noqa: S608 - constants
        sorted(run_ids),
        PREFIX,
    )
    return [_event(WORKFLOW, row) for row in rows]


async def of_jobs(db: Db, job_ids: Collection[str]) -> list[NewEvent]:
    """The same of ended jobs. Those that a rerun has taken over, and such that ask a workflow's functions, are left
    out."""
    rows = await db.fetch(
        f"""
        select {_OF_RUN}, j.job_id as id, j.base_job_name as job, j.status,
               jsonb_build_object(
                 'workflowName', r.workflow_name, 'jobName', j.job_name, 'jobId', j.job_id, 'runId', r.run_id,
                 'status', j.status, 'ref', r.ref, 'sha', r.sha, 'error', j.error_message,
                 'matrix', coalesce(j.matrix_values, '{{}}'), 'durationMs', coalesce(j.duration_ms, 0),
                 'stepResults', coalesce((
                   select jsonb_agg(jsonb_build_object('name', s.step_name, 'status', s.status) order by s.step_index)
                     from execution_steps s
                    where s.job_id = j.job_id and s.attempt = greatest(j.attempt, 1)), '[]')
               ) as payload
          from execution_jobs j join execution_runs r on r.run_id = j.run_id
         where j.job_id = any($1::uuid[]) and j.reused_from is null and not starts_with(j.job_name, $2)
           and {JOB_HEARD}
         order by j.job_id
        """,  # noqa: S608 - constants
        sorted(job_ids),
        PREFIX,
    )
    return [_event(JOB, row) for row in rows]


async def insert(db: Db, found: Sequence[NewEvent]) -> None:
    """Tell `notify.EVENTS` after the commit. An end that was told before is not told again."""
    await events.insert_batch(db, found)


_OF_RUN = """
  r.run_id, r.workflow_name as workflow, r.repo_identifier as repo, coalesce(r.routing_key, '') as routing_key, r.ref,
  r.sha, coalesce((r.event ->> 'chainDepth')::int, 0) + 1 as chain_depth
"""


def _event(kind: str, row: Record) -> NewEvent:
    completion = Completion(
        workflow=row["workflow"],
        status=row["status"],
        repo=row["repo"],
        run_id=row["run_id"],
        sha=row["sha"],
        chain_depth=row["chain_depth"],
        payload=row["payload"],
        job=row["job"],
    )
    body = msgspec.json.encode(completion)
    return NewEvent(
        id=events.new_id(),
        delivery_id=f"{kind}:{row['id']}",
        routing_key=row["routing_key"],
        event=kind,
        action=row["status"],
        provider=PROVIDER,
        headers={"workflow": row["workflow"]} if row["chain_depth"] > 1 else {},
        repo=row["repo"],
        ref=row["ref"],
        content_type="application/json",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        body=body,
    )
