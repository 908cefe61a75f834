"""What a rerun has to know of the run that it repeats."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kici.engine.events import Event
from kici.engine.lifecycle import JobStatus, RunStatus
from kici.engine.lockfile import LockJob
from kici.orchestrator.errors import Conflict
from kici.orchestrator.store.database import Db


class Original(Struct, frozen=True):
    run_id: str
    root_run_id: str
    """First of the chain of reruns: often the run itself."""
    status: RunStatus
    workflow_name: str
    provider: str
    routing_key: str
    repo: str
    workflow_sha: str
    lock_sha256: str
    clone_url: str
    lock_from_base: bool
    event: Event


class OriginalJob(Struct, frozen=True):
    job_id: str
    name: str
    base: str
    status: JobStatus
    definition: LockJob | None
    """None: another version has written it, and it cannot be compared."""
    made_by: str = ""
    """Name of the generator, or of the dynamic job, that it came of while the run went."""
    generated_by: str = ""
    """The same, of a generator only."""
    position: int = 0
    matrix: dict[str, str] = {}
    concurrency_group: str = ""
    problem: str = ""
    """Why it could not be made when it came."""
    needs: dict[str, tuple[str, ...]] = {}
    """Name of a job that it needed → the endings of that which it wanted."""


async def original(db: Db, run_id: str) -> Original | None:
    """Raises `Conflict` if another version has written its event, and it cannot be read."""
    row = await db.fetchrow(
        """
        select run_id, coalesce(original_run_id, run_id::text) as root_run_id, status, workflow_name, provider,
               coalesce(routing_key, '') as routing_key, repo_identifier as repo, workflow_sha, lock_sha256, clone_url,
               coalesce(lock_file_source, '') = 'base' as lock_from_base, event
          from execution_runs where run_id = $1
        """,
        run_id,
    )
    try:
        return None if row is None else msgspec.convert(dict(row), Original)
    except msgspec.ValidationError as error:
        raise Conflict(f"what started run {run_id} cannot be read ({error}): push or start it anew") from error


async def jobs(db: Db, run_id: str) -> list[OriginalJob]:
    """All jobs of an ended run, in the order of the workflow."""
    rows = await db.fetch(
        """
        select j.job_id, j.job_name as name, j.base_job_name as base, j.status, j.definition,
               case when carried then coalesce(generated_by, base_job_name) else '' end as made_by,
               coalesce(generated_by, '') as generated_by, position, coalesce(matrix_values, '{}') as matrix,
               coalesce(concurrency_group, '') as concurrency_group,
               case when init_failure ->> 'category' = 'matrix_expansion' then coalesce(error_message, '') else '' end
                 as problem,
               case when carried then coalesce((
                 select jsonb_object_agg(n.upstream_name, to_jsonb(n.run_on))
                   from execution_job_needs n where n.job_id = j.job_id), '{}') else '{}' end as needs
          from execution_jobs j where j.run_id = $1 order by j.position, j.job_id
        """,
        run_id,
    )
    return [
        OriginalJob(
            row["job_id"],
            row["name"],
            row["base"],
            JobStatus(row["status"]),
            _definition(row["definition"]),
            row["made_by"],
            row["generated_by"],
            row["position"],
            row["matrix"],
            row["concurrency_group"],
            row["problem"],
            {name: tuple(run_on) for name, run_on in row["needs"].items()},
        )
        for row in rows
    ]


class Named(Struct, frozen=True):
    """A job, and what else one may call it by."""

    name: str
    base: str
    """Without the matrix suffix."""
    generator: str
    """That made it; else the same as `base`."""
    status: JobStatus


async def names(db: Db, run_id: str) -> list[Named]:
    rows = await db.fetch(
        """
        select job_name, base_job_name as base, coalesce(generated_by, base_job_name) as generator, status
          from execution_jobs where run_id = $1 order by position, job_id
        """,
        run_id,
    )
    return [Named(row["job_name"], row["base"], row["generator"], JobStatus(row["status"])) for row in rows]


def _definition(stored: object) -> LockJob | None:
    try:
        return msgspec.convert(stored, LockJob)
    except msgspec.ValidationError:
        return None
