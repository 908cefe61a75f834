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
        select job_id, job_name as name, base_job_name as base, status, definition,
               case when carried then coalesce(generated_by, base_job_name) else '' end as made_by
          from execution_jobs where run_id = $1 order by position
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
        )
        for row in rows
    ]


async def names(db: Db, run_id: str) -> dict[str, tuple[str, JobStatus]]:
    """Job → its name without the matrix suffix, or that of the generator that made it, and its status."""
    rows = await db.fetch(
        """
        select job_name, coalesce(generated_by, base_job_name) as base, status from execution_jobs where run_id = $1
         order by position, job_id
        """,
        run_id,
    )
    return {row["job_name"]: (row["base"], JobStatus(row["status"])) for row in rows}


def _definition(stored: object) -> LockJob | None:
    try:
        return msgspec.convert(stored, LockJob)
    except msgspec.ValidationError:
        return None
