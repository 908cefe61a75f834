"""What a batch of agents' messages does to runs, jobs, steps and queue rows at once: one round trip for each act.

The rules of `lifecycle` decide; the rows belong to the caller, who has locked them with `lock_free`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from kici.orchestrator.store import jobs, run_states
from kici.orchestrator.store.completions import JOB_HEARD
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Acceptance, Ending, Job
from kici.orchestrator.store.queue import QueueRow
from kici.orchestrator.store.run_states import Run
from kici.orchestrator.store.steps import Settled, Settlement


class Free(Struct, frozen=True):
    """What could be locked without waiting."""

    runs: list[Run]
    jobs: list[Job]
    rows: list[QueueRow]


class Ended(Struct, frozen=True):
    settled: list[Settled]
    """Steps that had begun: their logs are to be compacted."""
    heard: list[str]
    """Jobs of whose end a workflow may want to be told."""


_free = msgspec.json.Decoder(Free)


async def lock_free(db: Db, *, runs: Collection[str], job_ids: Collection[str], rows: Collection[str]) -> Free:
    """Lock these runs, jobs and queue rows (by job). What is locked elsewhere is missing. Nobody is waited for, so the
    order does not matter, and a row that turns out to be of no use hurts nobody for long."""
    text = await db.fetchval(
        f"""
        with r as materialized (
          select {run_states.COLUMNS} from execution_runs where run_id = any($1::uuid[])
             for no key update skip locked
        ), j as materialized (
          select {jobs.COLUMNS} from execution_jobs where job_id = any($2::uuid[]) for no key update skip locked
        ), q as materialized (
          select id, run_id, attempt, session_id, accepted_at, rejections from dispatch_queue
           where id = any($3::uuid[]) for update skip locked
        )
        select json_build_object('runs', coalesce((select json_agg(r) from r), '[]'),
                                 'jobs', coalesce((select json_agg(j) from j), '[]'),
                                 'rows', coalesce((select json_agg(q) from q), '[]'))::text
        """,  # noqa: S608 - constants
        sorted(runs),
        sorted(job_ids),
        sorted(rows),
    )
    return _free.decode(text)


async def accept(
    db: Db,
    accepted: Sequence[Acceptance],
    *,
    starting: Collection[str],
    timeout_ms: int | None = None,
    margin_s: float = 0.0,
) -> None:
    """The jobs run, their claims are accepted, and the runs `starting` start. Timeouts count from now.

    `timeout_ms` is for jobs that have none of their own; None = they have no deadline. `margin_s`: beyond timeout and
    grace period, for their agents to stop them themselves.
    """
    await db.execute(
        """
        with run as (
          update execution_runs
             set status = 'running', started_at = now(),
                 deadline = now() + make_interval(secs => workflow_timeout_ms / 1000.0)
           where run_id = any($5::uuid[])
        ), claimed as (
          update dispatch_queue set accepted_at = now(), ack_deadline = null where id = any($1::uuid[])
        )
        update execution_jobs j
           set status = 'running', attempt = a.attempt, session_id = a.session_id, agent_id = a.agent_id,
               started_at = now(), log_hour = date_trunc('hour', now()), user_code_began = false,
               recovery_deadline = null, report_deadline = null, error_message = null, reason = null,
               deadline = now() + make_interval(secs => $7 + (
                 coalesce((j.definition ->> 'timeoutMs')::float8, $6::float8)
                 + coalesce((j.definition ->> 'gracePeriodMs')::float8, 30000)) / 1000)
          from unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[]) as a (job_id, attempt, session_id, agent_id)
         where j.job_id = a.job_id
        """,
        [one.job_id for one in accepted],
        [one.attempt for one in accepted],
        [one.session_id for one in accepted],
        [one.agent_id for one in accepted],
        sorted(starting),
        timeout_ms,
        margin_s,
    )


async def end(db: Db, endings: Sequence[Ending], settlements: Sequence[Settlement]) -> Ended:
    """Write endings, take the jobs out of the queue, and end what has not ended of their steps.

    An ending that the agent did not report takes the job from its session. While no workflow waits for ends of jobs,
    nothing is asked of any of them.
    """
    rows = await db.fetch(
        f"""
        with ended as (
          update execution_jobs j
             set status = e.status, completed_at = now(),
                 duration_ms = case when j.started_at is not null then
                   least(extract(epoch from now() - j.started_at) * 1000, 2147483647)::int end,
                 error_message = coalesce(nullif(e.error, ''),
                                          case when e.status = 'cancelled' then j.error_message end),
                 reason = nullif(e.reason, ''), exit_code = e.exit_code, signal = nullif(e.signal, ''),
                 peak_memory_bytes = e.peak_memory_bytes,
                 outputs = coalesce(e.outputs, j.outputs),
                 init_failure = coalesce(e.init_failure, j.init_failure),
                 session_id = case when e.reported then j.session_id end,
                 user_code_began = j.user_code_began or e.user_code_began,
                 recovery_deadline = null, report_deadline = null, cancel_deadline = null
            from unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::jsonb[], $6::bool[], $7::bool[],
                        $14::text[], $15::int[], $16::text[], $17::bigint[])
                   as e (job_id, status, error, outputs, init_failure, reported, user_code_began, reason, exit_code,
                         signal, peak_memory_bytes)
           where j.job_id = e.job_id
          returning j.job_id, j.run_id
        ), gone as (
          delete from dispatch_queue where id = any($1::uuid[])
        ), settled as (
          update execution_steps s
             set status = case when was.status = 'running' then e.running else e.pending end,
                 completed_at = now(),
                 duration_ms = case when s.started_at is not null then
                   least(extract(epoch from now() - s.started_at) * 1000, 2147483647)::int end,
                 error_message = case when was.status = 'running' then nullif(e.error, '') end,
                 reason = case when was.status = 'running' then nullif(e.reason, '') end
            from unnest($8::uuid[], $9::int[], $10::text[], $11::text[], $12::text[], $13::text[])
                   as e (job_id, attempt, running, pending, error, reason)
           cross join lateral (
             select id, status from execution_steps
              where job_id = e.job_id and attempt <= greatest(e.attempt, 1) and status in ('pending', 'running')
             offset 0 -- by the job's index, however few open steps the statistics promise
           ) was
           where s.id = was.id
          returning s.id, s.run_id, s.job_id, s.attempt, s.step_index, was.status as was
        )
        select id, run_id, job_id, attempt, step_index from settled where was = 'running'
        union all
        select null, e.run_id, e.job_id, null, null from ended e join execution_runs r on r.run_id = e.run_id
         where 0 < (select count(*) from workflow_registrations
                     where trigger_types && array['job_complete', 'lifecycle'])
           and {JOB_HEARD}
        """,  # noqa: S608 - constants
        [one.job_id for one in endings],
        [str(one.status) for one in endings],
        [one.error for one in endings],
        [one.outputs for one in endings],
        [one.init_failure for one in endings],
        [one.reported for one in endings],
        [one.user_code_began for one in endings],
        [one.job_id for one in settlements],
        [one.attempt for one in settlements],
        [str(one.running) for one in settlements],
        [str(one.pending) for one in settlements],
        [one.error for one in settlements],
        [one.reason for one in settlements],
        [one.reason for one in endings],
        [one.exit_code for one in endings],
        [one.signal for one in endings],
        [one.peak_memory_bytes for one in endings],
    )
    return Ended(
        [
            Settled(row["id"], row["run_id"], row["job_id"], row["attempt"], row["step_index"])
            for row in rows
            if row["id"] is not None
        ],
        [row["job_id"] for row in rows if row["id"] is None],
    )
