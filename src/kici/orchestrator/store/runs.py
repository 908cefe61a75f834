"""Makes runs: the run, its jobs, their needs and steps, all in the caller's transaction. Nothing starts yet: that is
`lifecycle.new_run`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.concurrency import Policy
from kici.engine.events import Event
from kici.engine.labels import Requirement
from kici.engine.lifecycle import JobStatus, RunStatus, StepStatus
from kici.engine.lockfile import LockConcurrency, LockJob
from kici.engine.plan import Seed
from kici.engine.triggers import Decision
from kici.orchestrator.store import reuse, storable
from kici.orchestrator.store.database import Db


class NewNeed(Struct, frozen=True):
    upstream_job_id: str
    upstream_name: str
    run_on: tuple[str, ...]


class Reused(Struct, frozen=True):
    """A job of an earlier run, ended, that a rerun takes over as it ended: it is not run again."""

    job_id: str
    status: JobStatus


class NewJob(Struct, frozen=True, kw_only=True):
    job_id: str
    name: str
    base_name: str
    position: int
    definition: LockJob
    """With its templates expanded in `env`."""
    matrix: dict[str, str]
    needs: tuple[NewNeed, ...]
    requirement: Requirement
    problem: str = ""
    """Set: the job is born failed, with this sentence."""
    problem_category: str = ""
    skip: str = ""
    """Set: the job is born skipped, with this sentence, unless it has a problem."""
    concurrency_group: str = ""
    """Of this job, with the policy of its definition."""
    seed: Seed | None = None
    """Set: it stands for jobs that take its place once its evaluation has ended."""
    generated_by: str = ""
    """Name of the generator that made it."""
    carried: bool = False
    """The lock file does not have it as it is: its definition goes to the agent with its context."""
    reused: Reused | None = None
    """Set: the job is born ended, as that one did."""

    @property
    def is_fan_out(self) -> bool:
        return self.definition.matrix is not None or bool(self.definition.include)

    @property
    def status(self) -> JobStatus:
        if self.reused is not None:
            return self.reused.status
        if self.problem:
            return JobStatus.FAILED
        return JobStatus.SKIPPED if self.skip else JobStatus.PENDING


class Rerun(Struct, frozen=True):
    """What is run again, and who asked for it."""

    parent_run_id: str
    root_run_id: str
    """First of the chain."""
    request_id: str
    """One rerun of the parent for each."""
    mode: str
    """`all`, `failed`, `job`"""


class NewRun(Struct, frozen=True, kw_only=True):
    run_id: str
    event_id: str | None
    workflow_name: str
    provider: str
    routing_key: str
    """Of the source whose credentials reach the code."""
    repo: str
    ref: str
    sha: str
    workflow_sha: str
    """Commit of the lock file and the `.kici/` that runs."""
    lock_sha256: str = ""
    clone_url: str
    event: Event
    delivery_id: str
    trigger_event: str
    decision: Decision | None = None
    triggered_by: str | None = None
    trust_tier: str | None = None
    lock_file_source: str | None = None
    timeout_ms: int | None = None
    concurrency_scope: str = ""
    """Where the groups of the run and its jobs live: see `store.concurrency`."""
    concurrency_group: str = ""
    """Of the whole run."""
    concurrency: Policy = Policy()
    rerun: Rerun | None = None
    failure: str = ""
    """Set: the run is born failed, with this sentence and without jobs."""
    failure_category: str = ""


class Home(Struct, frozen=True):
    """The run that jobs are put into."""

    run_id: str
    routing_key: str
    concurrency_scope: str


def policy(concurrency: LockConcurrency | None) -> Policy:
    """As it is stored."""
    if concurrency is None:
        return Policy()
    return Policy(concurrency.max, concurrency.cancel_in_progress, concurrency.pending)


class Twin(Struct, frozen=True):
    """The same work, already asked for through another source."""

    run_id: str
    routing_key: str


async def lock_commit(db: Db, repo: str, sha: str) -> None:
    """Until the transaction ends, nobody else looks for twins of this commit's runs or makes such a run."""
    await db.execute("select pg_advisory_xact_lock(hashtextextended('commit ' || $1 || ' ' || $2, 0))", repo, sha)


async def find_twin(db: Db, run: NewRun, window: timedelta) -> Twin | None:
    """A run of the same workflow for the same commit, ref and kind of event, younger than `window`, whose delivery
    came through another source. The same source asking twice is two pushes."""
    row = await db.fetchrow(
        """
        select run_id, routing_key
          from execution_runs
         where repo_identifier = $1 and created_at > now() - $2::interval
           and ref = $3 and sha = $4 and workflow_name = $5 and trigger_event = $6
           and routing_key <> $7 and parent_run_id is null
         order by created_at
         limit 1
        """,
        run.repo,
        window,
        run.ref,
        run.sha,
        run.workflow_name,
        run.trigger_event,
        run.routing_key,
    )
    return Twin(**row) if row else None


async def create(db: Db, run: NewRun, jobs: Sequence[NewJob]) -> bool:
    """Insert everything; False, and nothing is inserted, if the event has its run of this workflow already, or the
    request its rerun.

    No job starts by itself: in the same transaction the caller lets lifecycle settle the run.
    """
    if not run.concurrency_group and not any(job.concurrency_group or job.seed for job in jobs):
        run = replace(run, concurrency_scope="")
    if not await _insert_run(db, run):
        return False
    await add_jobs(db, Home(run.run_id, run.routing_key, run.concurrency_scope), jobs)
    await reuse.take_over(db, {job.job_id: job.reused.job_id for job in jobs if job.reused is not None})
    return True


async def add_jobs(db: Db, home: Home, jobs: Sequence[NewJob]) -> None:
    """Insert jobs with their needs and steps. Nothing starts."""
    await _insert_jobs(db, home, jobs)
    await _insert_needs(db, home.run_id, jobs)
    await _insert_steps(db, home, [job for job in jobs if job.reused is None])


async def _insert_run(db: Db, run: NewRun) -> bool:
    failed = bool(run.failure)
    done = await db.execute(
        """
        insert into execution_runs
          (run_id, event_id, workflow_name, status, provider, routing_key, repo_identifier, ref, sha, workflow_sha,
           lock_sha256, event, clone_url, delivery_id, trigger_event, trigger_decision, commit_message, triggered_by,
           trust_tier, lock_file_source, contributor_username, workflow_timeout_ms, failure_reason, init_failure,
           completed_at, concurrency_scope, concurrency_group, concurrency, parent_run_id, original_run_id,
           rerun_request, rerun_mode)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
                nullif($23, ''), $24, case when $25::boolean then now() end, nullif($26, ''), nullif($27, ''), $28,
                $29::uuid, $30, $31, $32)
        on conflict do nothing
        """,
        run.run_id,
        run.event_id,
        run.workflow_name,
        RunStatus.FAILED if failed else RunStatus.PENDING,
        run.provider,
        run.routing_key,
        run.repo,
        run.ref,
        run.sha,
        run.workflow_sha,
        run.lock_sha256,
        storable.json(run.event),
        run.clone_url,
        run.delivery_id,
        run.trigger_event,
        storable.json(run.decision) if run.decision else None,
        _first_line(run.event.message) or None,
        run.triggered_by,
        run.trust_tier,
        run.lock_file_source,
        storable.text(run.event.actor) if run.trust_tier else None,
        run.timeout_ms,
        storable.text(run.failure),
        _init_failure("run", run.failure_category, run.failure) if failed else None,
        failed,
        storable.text(run.concurrency_scope),
        storable.text(run.concurrency_group),
        storable.json(run.concurrency) if run.concurrency_group else None,
        run.rerun.parent_run_id if run.rerun else None,
        run.rerun.root_run_id if run.rerun else None,
        run.rerun.request_id if run.rerun else None,
        run.rerun.mode if run.rerun else None,
    )
    return bool(done == "INSERT 0 1")


async def _insert_jobs(db: Db, run: Home, jobs: Sequence[NewJob]) -> None:
    places = _places(jobs)
    await db.executemany(
        """
        insert into execution_jobs
          (run_id, job_id, job_name, base_job_name, position, status, definition, matrix_values, retry_on_infra,
           runs_on_labels, needs_satisfied, error_message, routing_key, init_failure, completed_at,
           concurrency_scope, concurrency_group, concurrency, wave_max_parallel, wave_fail_fast, seed, generated_by,
           carried, fan_out_index, fan_out_total)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, nullif($12, ''), $13, $14,
                case when $6 in ('failed', 'skipped') then now() end, nullif($15, ''), nullif($16, ''), $17, $18, $19,
                $20, nullif($21, ''), $22, $23, $24)
        """,
        [
            (
                run.run_id,
                job.job_id,
                job.name,
                job.base_name,
                job.position,
                str(job.status),
                storable.json(job.definition),
                job.matrix or None,
                job.definition.retry_on_infra,
                job.definition.runs_on,
                not job.needs,
                storable.text(job.problem or job.skip),
                run.routing_key,
                _init_failure("job", job.problem_category, job.problem) | {"jobName": job.name}
                if job.problem
                else None,
                storable.text(run.concurrency_scope) if job.concurrency_group else "",
                storable.text(job.concurrency_group),
                storable.json(policy(job.definition.concurrency)) if job.concurrency_group else None,
                job.definition.max_parallel if job.is_fan_out else None,
                job.definition.fail_fast and job.is_fan_out,
                storable.json(job.seed) if job.seed else None,
                storable.text(job.generated_by),
                job.carried,
                *places[job.job_id],
            )
            for job in jobs
        ],
    )


async def _insert_needs(db: Db, run_id: str, jobs: Sequence[NewJob]) -> None:
    await db.executemany(
        """
        insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
        values ($1, $2, $3, $4, $5, $6)
        """,
        [
            (run_id, job.job_id, need.upstream_job_id, job.name, need.upstream_name, need.run_on)
            for job in jobs
            for need in job.needs
        ],
    )


async def _insert_steps(db: Db, run: Home, jobs: Sequence[NewJob]) -> None:
    await db.executemany(
        """
        insert into execution_steps
          (run_id, job_id, attempt, step_index, step_name, status, continue_on_error, routing_key)
        values ($1, $2, 1, $3, $4, $5, $6, $7)
        """,
        [
            (
                run.run_id,
                job.job_id,
                index,
                step.name,
                str(StepStatus.SKIPPED if job.problem or job.skip else StepStatus.PENDING),
                step.continue_on_error,
                run.routing_key,
            )
            for job in jobs
            for index, step in enumerate(job.definition.steps)
        ],
    )


def _places(jobs: Sequence[NewJob]) -> dict[str, tuple[int, int]]:
    """Job → its place among the combinations of its matrix, from 0, and how many there are."""
    fan_outs: dict[str, list[str]] = {}
    for job in sorted(jobs, key=lambda job: job.position):
        fan_outs.setdefault(job.base_name, []).append(job.job_id)
    return {
        job_id: (index, len(combinations))
        for combinations in fan_outs.values()
        for index, job_id in enumerate(combinations)
    }


def _init_failure(scope: str, category: str, message: str) -> dict[str, str]:
    return {"scope": scope, "category": category, "message": storable.text(message)}


def _first_line(message: str) -> str:
    return storable.text(message.strip().partition("\n")[0])[:500]
