"""The states of jobs. Only `lifecycle` writes them, on rows that it has locked after their run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from kici.engine.events import Event
from kici.engine.fan_out import Child
from kici.engine.lifecycle import TERMINAL_JOB, JobStatus
from kici.engine.lockfile import LockJob, Pattern, Retry
from kici.orchestrator.store.database import Db
from kici.wire.context import NeededJob

log = structlog.get_logger(__name__)


class Job(Struct, frozen=True):
    job_id: str
    run_id: str
    job_name: str
    status: JobStatus
    attempt: int
    """The last accepted one; 0 = none yet."""
    session_id: str | None
    """Of the agent that has, or had, the last attempt; None once the orchestrator took it away."""
    agent_id: str | None
    user_code_began: bool
    retry_on_infra: Retry | None = None
    grace_ms: int = 30_000
    cancel_force: bool = False
    timed_out: str | None = None
    """Set: it is stopped for taking too long, and ends as failed with this sentence."""
    base_job_name: str = ""
    position: int = 0
    needs_satisfied: bool = True
    concurrency_group: str | None = None
    """Of this job; its scope is the run's."""
    wave_max_parallel: int | None = None
    wave_fail_fast: bool = False
    """Both of a fan-out: see `engine.fan_out`."""
    stands_in: bool = False
    """For jobs that take its place once its evaluation has ended: it never runs itself."""

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL_JOB


class Definition(Struct, frozen=True, rename="camel"):
    """What the queue and a dispatch need of a job's definition. A newer coordinator may have stored more."""

    runs_on: tuple[Pattern, ...] = ()
    exclude_labels: tuple[Pattern, ...] = ()
    sandbox: str | None = None
    priority: int = 0
    env: dict[str, str] = {}
    """Templates expanded."""
    timeout_ms: int | None = None


class Acceptance(Struct, frozen=True):
    job_id: str
    attempt: int
    session_id: str
    agent_id: str


class Ending(Struct, frozen=True):
    job_id: str
    status: JobStatus
    error: str = ""
    reason: str = ""
    """`engine.failure.Reason`, if it did not succeed. With what follows: of the step that made it fail."""
    exit_code: int | None = None
    signal: str = ""
    peak_memory_bytes: int | None = None
    outputs: dict[str, Any] | None = None
    init_failure: dict[str, Any] | None = None
    reported: bool = False
    """By its agent: which then may still send the rest of the attempt's log."""
    user_code_began: bool = False


class Orders(Struct, frozen=True):
    """All that a dispatch says, of one claimed job."""

    job_id: str
    run_id: str
    job_name: str
    base_job_name: str
    definition: Definition
    matrix: dict[str, str]
    retry_on_infra: Retry | None
    environment: str
    workflow_name: str
    sha: str
    workflow_sha: str
    ref: str
    lock_sha256: str
    clone_url: str
    repository: str
    routing_key: str
    event: Event
    needs: tuple[NeededJob, ...] = ()
    generated_by: str = ""
    own_definition: LockJob | None = None
    """Of a job that the lock file does not have as it is."""
    fan_out_index: int = 0
    fan_out_total: int = 1
    has_secrets: bool = False
    """Jobs that it needs hand secrets over to it."""


class Stop(Struct, frozen=True):
    """An agent is to stop an attempt."""

    job_id: str
    attempt: int
    session_id: str
    force: bool
    reason: str


class Place(Struct, frozen=True):
    """Where a job belongs."""

    run_id: str
    run_status: str
    scope: str | None
    """Of its run's concurrency groups: see `store.concurrency`. It never changes."""


class Start(Struct, frozen=True):
    """What puts a job into the queue."""

    job_id: str
    run_id: str
    job_name: str
    workflow_name: str
    repository: str
    definition: Definition


async def whereabouts(db: Db, job_ids: Collection[str]) -> dict[str, Place]:
    """Where jobs belong, unlocked: to know which scopes and runs to lock first. Unknown jobs are missing."""
    rows = await db.fetch(
        """
        select j.job_id, j.run_id, r.status, r.concurrency_scope
          from execution_jobs j
         cross join lateral (
           select status, concurrency_scope from execution_runs where run_id = j.run_id
           offset 0 -- by the index: statistics of a table that grows fast speak for reading all of it
         ) r
         where j.job_id = any($1::uuid[])
        """,
        sorted(job_ids),
    )
    return {row["job_id"]: Place(row["run_id"], row["status"], row["concurrency_scope"]) for row in rows}


COLUMNS = """
  job_id, run_id, job_name, status, attempt, session_id, agent_id, user_code_began, retry_on_infra, cancel_force,
  timed_out, coalesce((definition ->> 'gracePeriodMs')::int, 30000) as grace_ms, base_job_name, position,
  needs_satisfied, concurrency_group, wave_max_parallel, wave_fail_fast, seed is not null as stands_in
"""


async def lock(db: Db, job_ids: Collection[str], *, skip_locked: bool = False, wait: bool = True) -> dict[str, Job]:
    """Lock rows in the order of their ids. With `skip_locked` those that are locked elsewhere are missing; without
    `wait` such a one raises `LockNotAvailableError`."""
    rows = await db.fetch(
        f"""
        select {COLUMNS} from execution_jobs where job_id = any($1::uuid[])
         order by job_id for no key update {"skip locked" if skip_locked else "" if wait else "nowait"}
        """,  # noqa: S608 - constants
        sorted(job_ids),
    )
    return {row["job_id"]: _job(row) for row in rows}


async def lock_of_runs(db: Db, run_ids: Collection[str], *, ended: bool = False, wait: bool = True) -> dict[str, Job]:
    """Lock all jobs of these runs that have not ended; with `ended` those, too."""
    rows = await db.fetch(
        f"""
        select {COLUMNS} from execution_jobs where run_id = any($1::uuid[]) and status <> all($2::text[])
         order by job_id for no key update {"" if wait else "nowait"}
        """,  # noqa: S608 - constants
        sorted(run_ids),
        [] if ended else sorted(TERMINAL_JOB),
    )
    return {row["job_id"]: _job(row) for row in rows}


async def children(db: Db, fan_outs: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[Child]]:
    """(run, base name) → the children of that fan-out, by position. The caller holds their runs."""
    rows = await db.fetch(
        """
        select j.run_id, j.base_job_name, j.job_id, j.position, j.status, j.needs_satisfied, j.wave_gated
          from unnest($1::uuid[], $2::text[]) as f (run_id, base_job_name)
          join execution_jobs j on j.run_id = f.run_id and j.base_job_name = f.base_job_name
         order by j.position
        """,
        [run_id for run_id, _ in fan_outs],
        [base for _, base in fan_outs],
    )
    found: dict[tuple[str, str], list[Child]] = {}
    for row in rows:
        child = Child(
            row["job_id"], row["position"], JobStatus(row["status"]), row["needs_satisfied"], row["wave_gated"]
        )
        found.setdefault((row["run_id"], row["base_job_name"]), []).append(child)
    return found


async def hold_back(db: Db, job_ids: Collection[str], gated: Collection[str]) -> None:
    """Their needs are met and they stay `pending`: those of `gated` for a place in their fan-out's window."""
    await db.execute(
        """
        update execution_jobs set needs_satisfied = true, wave_gated = (job_id = any($2::uuid[]))
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
        sorted(gated),
    )


async def of_sessions(db: Db, sessions: Collection[str]) -> dict[str, Job]:
    """Open jobs whose attempt belongs to these sessions, unlocked."""
    rows = await db.fetch(
        f"""
        select {COLUMNS} from execution_jobs
         where session_id = any($1::uuid[]) and status in ('running', 'recovering', 'cancelling')
        """,  # noqa: S608 - constants
        sorted(sessions),
    )
    return {row["job_id"]: _job(row) for row in rows}


async def user_code_began(db: Db, job_ids: Collection[str]) -> None:
    await db.execute("update execution_jobs set user_code_began = true where job_id = any($1::uuid[])", sorted(job_ids))


async def enqueue(db: Db, job_ids: Collection[str]) -> list[Start]:
    """They have passed every gate: `pending` → `queued`. Returns what the queue must know of them."""
    rows = await db.fetch(
        """
        update execution_jobs j set status = 'queued', needs_satisfied = true, wave_gated = false, ready_at = now()
          from execution_runs r
         where r.run_id = j.run_id and j.job_id = any($1::uuid[])
        returning j.job_id, j.run_id, j.job_name, j.definition, r.workflow_name, r.repo_identifier as repository
        """,
        sorted(job_ids),
    )
    return [msgspec.convert(dict(row), Start) for row in rows]


async def requeue(db: Db, job_ids: Collection[str]) -> None:
    """Another attempt may start. `started_at` is set anew when it is accepted."""
    await db.execute(
        """
        update execution_jobs
           set status = 'queued', session_id = null, recovery_deadline = null, report_deadline = null
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
    )


async def cancelling(
    db: Db, job_ids: Collection[str], *, force: bool, margin_s: float, requested: bool = True, reason: str = ""
) -> None:
    """Asked to stop; not `requested` = its agent does so by itself. The deadline is that of the job's grace period
    plus a margin; with `force` the margin alone. Asking again does not move it further away. The first `reason` stays:
    the agent is told it, and a job that ends as cancelled without one of its own keeps it."""
    await db.execute(
        """
        update execution_jobs
           set status = 'cancelling',
               cancel_requested_at = coalesce(cancel_requested_at, case when $4 then now() end),
               cancel_force = cancel_force or $2,
               cancel_deadline = least(cancel_deadline, now() + make_interval(secs => $3 + case
                 when $2 then 0 else coalesce((definition ->> 'gracePeriodMs')::float8, 30000) / 1000 end)),
               error_message = coalesce(error_message, nullif($5, '')),
               recovery_deadline = null, report_deadline = null
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
        force,
        margin_s,
        requested,
        reason,
    )


async def recovering(
    db: Db, job_ids: Collection[str], *, heard_s: float, retry_s: float | None, report_s: float
) -> None:
    """Their agent was last heard `heard_s` ago. Deadlines count from then; `retry_s` None = no next attempt by
    itself."""
    await db.execute(
        """
        update execution_jobs
           set status = 'recovering',
               recovery_deadline = now() - make_interval(secs => $2) + make_interval(secs => $3),
               report_deadline = now() - make_interval(secs => $2) + make_interval(secs => $4)
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
        heard_s,
        retry_s,
        report_s,
    )


async def resume(db: Db, job_ids: Collection[str], session_id: str) -> None:
    """Their agent is back, under this session; what is not `recovering` keeps its status."""
    await db.execute(
        """
        update execution_jobs
           set status = case when status = 'recovering' then 'running' else status end,
               session_id = $2, recovery_deadline = null, report_deadline = null
         where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
        session_id,
    )


async def to_stop(db: Db, sessions: Collection[str]) -> list[Stop]:
    """What the agents of these sessions are asked to stop and have not yet ended."""
    rows = await db.fetch(
        """
        select j.job_id, j.attempt, j.session_id, j.cancel_force as force,
               coalesce(j.timed_out, j.error_message, r.failure_reason, 'cancelled') as reason
          from execution_jobs j join execution_runs r on r.run_id = j.run_id
         where j.session_id = any($1::uuid[]) and j.status = 'cancelling' and j.cancel_requested_at is not null
        """,
        sorted(sessions),
    )
    return [Stop(**row) for row in rows]


async def find_overdue(db: Db, lease: timedelta, batch: int) -> list[str]:
    """Jobs whose recovery or cancellation is overdue, oldest first. Nothing is locked.

    Those whose own coordinator came back less than a full `lease` ago are left out.
    """
    rows = await db.fetch(
        """
        with due as (
          (select job_id, session_id, least(recovery_deadline, report_deadline) as due from execution_jobs
            where status = 'recovering' and least(recovery_deadline, report_deadline) < now() order by 3 limit $1)
          union all
          (select job_id, session_id, cancel_deadline from execution_jobs
            where status = 'cancelling' and cancel_deadline < now() order by 3 limit $1)
        )
        select d.job_id
          from due d
          left join agent_sessions s on s.id = d.session_id
          left join coordinators c on c.instance = s.coordinator
         where c.lease_since is null or c.lease_expires_at < now() or c.lease_since < now() - $2::interval
         order by d.due limit $1
        """,
        batch,
        lease,
    )
    return [row["job_id"] for row in rows]


async def past_deadlines(db: Db, job_ids: Collection[str]) -> dict[str, str]:
    """Of locked jobs: which deadline has passed, `recovery`, `report` or `cancel`. The others are missing.

    Where the next attempt starts by itself that counts, however late it is noticed.
    """
    rows = await db.fetch(
        """
        select job_id,
               case when status = 'recovering' and recovery_deadline < now() then 'recovery'
                    when status = 'recovering' and report_deadline < now() then 'report'
                    when status = 'cancelling' and cancel_deadline < now() then 'cancel' end as passed
          from execution_jobs where job_id = any($1::uuid[])
        """,
        sorted(job_ids),
    )
    return {row["job_id"]: row["passed"] for row in rows if row["passed"]}


async def orders(db: Db, job_ids: Collection[str]) -> dict[str, Orders]:
    """What a dispatch needs, of jobs that are claimed. Missing: jobs of which something stored cannot be read."""
    rows = await db.fetch(
        """
        select j.job_id, j.run_id, j.job_name, j.base_job_name, j.definition, coalesce(j.matrix_values, '{}') as matrix,
               j.retry_on_infra, coalesce(j.environment, '') as environment, r.workflow_name, r.sha, r.workflow_sha,
               r.ref, r.lock_sha256, r.clone_url, r.repo_identifier as repository,
               coalesce(r.routing_key, '') as routing_key, r.event, coalesce(j.generated_by, '') as generated_by,
               case when j.carried then j.definition end as own_definition, j.fan_out_index, j.fan_out_total
          from execution_jobs j cross join lateral (select * from execution_runs where run_id = j.run_id offset 0) r
         where j.job_id = any($1::uuid[])
        """,
        sorted(job_ids),
    )
    needed, with_secrets = await _needed(db, job_ids)
    found = {}
    for row in rows:
        try:
            orders = msgspec.convert(dict(row), Orders)
        except msgspec.ValidationError as error:
            log.error("what is stored of a job cannot be read", job=row["job_id"], error=str(error))
        else:
            found[orders.job_id] = msgspec.structs.replace(
                orders, needs=tuple(needed.get(orders.job_id, ())), has_secrets=orders.job_id in with_secrets
            )
    return found


async def _needed(db: Db, job_ids: Collection[str]) -> tuple[Mapping[str, list[NeededJob]], set[str]]:
    """What each of these jobs needs, and which of them get secrets from that."""
    rows = await db.fetch(
        """
        select n.job_id as needing, u.job_name as name, u.base_job_name as job, u.status,
               coalesce(u.matrix_values, '{}') as matrix, coalesce(u.outputs, '{}') as outputs,
               coalesce(u.generated_by, '') as generated_by,
               exists (select from secret_outputs s where s.job_id = coalesce(u.reused_from, u.job_id)) as has_secrets
          from execution_job_needs n join execution_jobs u on u.job_id = n.upstream_job_id
         where n.job_id = any($1::uuid[]) order by u.position
        """,
        sorted(job_ids),
    )
    needed: dict[str, list[NeededJob]] = {}
    with_secrets = set()
    for row in rows:
        values = dict(row)
        needing = values.pop("needing")
        if values.pop("has_secrets"):
            with_secrets.add(needing)
        needed.setdefault(needing, []).append(NeededJob(**values))
    return needed, with_secrets


def _job(row: Any) -> Job:
    return msgspec.convert(dict(row), Job)
