"""What a rerun takes over from jobs that ended in an earlier run: their ends, steps and artifacts, by copying rows.

Objects in the object store are not copied: two rows may name one. A log stays where it was written, and is found by
`execution_jobs.reused_from`, the job that really ran, also through several reruns.
"""

from __future__ import annotations

from collections.abc import Mapping

from kici.orchestrator.errors import Conflict
from kici.orchestrator.store.database import Db


async def take_over(db: Db, reused: Mapping[str, str]) -> None:
    """Give these new jobs (new → earlier) what the earlier ones have, in the transaction that makes them.

    An ended job never changes. Raises `Conflict` if one of them is not there any more.
    """
    if not reused:
        return
    pairs = sorted(reused), [reused[job_id] for job_id in sorted(reused)]
    await _copy_ends(db, *pairs)
    await _copy_steps(db, *pairs)
    await _copy_artifacts(db, *pairs)


async def _copy_ends(db: Db, new: list[str], earlier: list[str]) -> None:
    done = await db.execute(
        """
        update execution_jobs j
           set status = o.status, attempt = o.attempt, agent_id = o.agent_id, ready_at = o.ready_at,
               started_at = o.started_at, completed_at = o.completed_at, duration_ms = o.duration_ms,
               error_message = o.error_message, reason = o.reason, exit_code = o.exit_code, signal = o.signal,
               peak_memory_bytes = o.peak_memory_bytes, init_failure = o.init_failure, outputs = o.outputs,
               environment = o.environment, user_code_began = o.user_code_began, log_hour = o.log_hour,
               log_bytes = o.log_bytes, needs_satisfied = true, reused_from = coalesce(o.reused_from, o.job_id)
          from unnest($1::uuid[], $2::uuid[]) as r (job_id, earlier)
          join execution_jobs o on o.job_id = r.earlier
         where j.job_id = r.job_id
        """,
        new,
        earlier,
    )
    if done != f"UPDATE {len(new)}":
        raise Conflict("a job that was to be reused has been removed: rerun the whole run")


async def _copy_steps(db: Db, new: list[str], earlier: list[str]) -> None:
    """Of the last attempt: earlier ones are seen in the run in which they were made."""
    await db.execute(
        """
        insert into execution_steps
          (run_id, job_id, attempt, step_index, step_name, status, step_type, step_attempt, continue_on_error,
           started_at, completed_at, duration_ms, exit_code, error_message, log_path, log_chunks, log_lines, log_bytes,
           secrets_accessed, annotations, summary, reason, signal, last_lines, peak_memory_bytes, routing_key)
        select j.run_id, j.job_id, s.attempt, s.step_index, s.step_name, s.status, s.step_type, s.step_attempt,
               s.continue_on_error, s.started_at, s.completed_at, s.duration_ms, s.exit_code, s.error_message,
               s.log_path, s.log_chunks, s.log_lines, s.log_bytes, s.secrets_accessed,
               s.annotations, s.summary, s.reason, s.signal, s.last_lines, s.peak_memory_bytes, s.routing_key
          from unnest($1::uuid[], $2::uuid[]) as r (job_id, earlier)
          join execution_jobs j on j.job_id = r.job_id
          join execution_steps s on s.job_id = r.earlier and s.attempt = greatest(j.attempt, 1)
        """,
        new,
        earlier,
    )


async def _copy_artifacts(db: Db, new: list[str], earlier: list[str]) -> None:
    await db.execute(
        """
        insert into artifacts
          (run_id, job_id, attempt, name, object_key, size_bytes, part_bytes, sha256, created_at, expired_at,
           routing_key, repository, pull_request)
        select j.run_id, j.job_id, a.attempt, a.name, a.object_key, a.size_bytes, a.part_bytes, a.sha256, a.created_at,
               a.expired_at, a.routing_key, a.repository, a.pull_request
          from unnest($1::uuid[], $2::uuid[]) as r (job_id, earlier)
          join execution_jobs j on j.job_id = r.job_id
          join execution_jobs o on o.job_id = r.earlier
          join artifacts a on a.run_id = o.run_id and a.job_id = o.job_id
        """,
        new,
        earlier,
    )
