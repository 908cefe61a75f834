"""`/api/v1/admin/runs`: the list, a run, its jobs, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
from asyncpg import Pool, Record
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from kici.engine import failure
from kici.engine.lifecycle import TERMINAL_RUN, JobStatus, RunStatus
from kici.orchestrator.api import parameters
from kici.orchestrator.errors import Conflict, Invalid, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.views import runs
from kici.wire import api

Explain: TypeAlias = Callable[[Db, Sequence[str]], Awaitable[dict[str, str]]]
"""(database, job ids) → job id → why the job waits, in words. Jobs that do not wait are missing."""

STATUSES = frozenset({*RunStatus, "timed_out_stale", "skipped"})
"""The last two are the original's: no run of ours has them, and asking for them finds nothing."""
_WAITING = frozenset({JobStatus.PENDING, JobStatus.QUEUED, JobStatus.RECOVERING, JobStatus.CANCELLING})
_MAX_BODY = 65_536


class Wakes(Protocol):
    def send(self, notifier: Any) -> None: ...


class Cancelled(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def cancelled_jobs(self) -> int: ...
    @property
    def wakes(self) -> Wakes: ...


class CancelsRuns(Protocol):
    """What lifecycle offers. Raises `NotFound`, or `Conflict` if the run has ended."""

    async def __call__(self, db: Db, run_id: str, *, by: str, reason: str, force: bool) -> Cancelled: ...


def routes(
    pool: Pool[Record], access: Access, notifier: Any, *, cancel_run: CancelsRuns, explain: Explain
) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/runs", guards=[access.guard("run.read")])
    async def list_runs(
        status: FromQuery[str | None] = None,
        workflow_name: Annotated[str | None, QueryParameter(name="workflowName")] = None,
        repo: FromQuery[str | None] = None,
        since: FromQuery[str | None] = None,
        id_prefix: Annotated[str | None, QueryParameter(name="idPrefix")] = None,
        limit: FromQuery[int] = 20,
        offset: FromQuery[int] = 0,
        count: FromQuery[str | None] = None,
    ) -> api.RunList | api.RunCount:
        """Runs, newest first. `total` is exact up to 10,000; with `count=1` it is exact and no run is listed."""
        id_from, id_to = parameters.uuid_range(id_prefix) if id_prefix else (None, None)
        wanted = runs.Filter(
            status=parameters.some_of(status, STATUSES, "status"),
            workflow_name=workflow_name,
            repo=repo,
            since=parameters.instant(since, "since"),
            id_from=id_from,
            id_to=id_to,
        )
        parameters.within(limit, 1, 100, "limit")
        parameters.within(offset, 0, 1_000_000, "offset")
        async with transaction(pool) as db:
            if parameters.flag(count):
                total = await runs.count(db, wanted)
                return api.RunCount(total, wanted.since, list(wanted.status or ()), workflow_name, repo)
            found = await runs.listed(db, wanted, limit, offset)
            return api.RunList(found, await runs.count(db, wanted, up_to=runs.COUNTED), limit, offset)

    @get("/api/v1/admin/runs/{run_id:str}", guards=[access.guard("run.read")])
    async def show_run(run_id: FromPath[str]) -> api.RunAnswer:
        wanted = parameters.uuid_of(run_id, "run")
        async with transaction(pool) as db:
            return api.RunAnswer(await existing(db, wanted))

    @get("/api/v1/admin/runs/{run_id:str}/jobs", guards=[access.guard("run.read")])
    async def list_jobs(
        run_id: FromPath[str],
        include_steps: Annotated[str | None, QueryParameter(name="includeSteps")] = None,
    ) -> api.JobList:
        """Jobs in the order of the workflow; those that wait say why."""
        wanted = parameters.uuid_of(run_id, "run")
        async with transaction(pool) as db:
            await existing(db, wanted)
            found = await runs.jobs(db, wanted, steps=parameters.flag(include_steps))
            return api.JobList(await with_reasons(db, found, explain))

    @post("/api/v1/admin/runs/{run_id:str}/cancel", status_code=200, guards=[access.guard("run.cancel")])
    async def cancel(run_id: FromPath[str], request: Request[Any, Any, Any]) -> api.CancelAnswer:
        """Cancel a run; with `{"force": true}` without a grace period. 409 if it has ended."""
        wanted = parameters.uuid_of(run_id, "run")
        force = _cancel_body(await request.body()).force
        async with transaction(pool) as db:
            run = await existing(db, wanted)
            if run.status in TERMINAL_RUN:
                raise Conflict(f"Run already in terminal state: {run.status}")
            result = await cancel_run(
                db,
                wanted,
                by=request.user.actor,
                reason=failure.cancelled_by(request.user.actor, force=force),
                force=force,
            )
        result.wakes.send(notifier)
        return api.CancelAnswer(str(result.status), result.cancelled_jobs)

    return [list_runs, show_run, list_jobs, cancel]


async def existing(db: Db, run_id: str) -> api.Run:
    run = await runs.one(db, run_id)
    if run is None:
        raise NotFound(f"Run {run_id} not found")
    return run


async def with_reasons(db: Db, jobs: list[api.Job], explain: Explain) -> list[api.Job]:
    """The jobs, those that wait with the reason."""
    waiting = [job.job_id for job in jobs if job.status in _WAITING]
    reasons = await explain(db, waiting) if waiting else {}
    return [
        msgspec.structs.replace(job, waiting_reason=reasons[job.job_id]) if job.job_id in reasons else job
        for job in jobs
    ]


def _cancel_body(data: bytes) -> api.CancelBody:
    if not data:
        return api.CancelBody()
    if len(data) > _MAX_BODY:
        raise Invalid("Invalid request: the body is too large")
    try:
        return msgspec.json.decode(data, type=api.CancelBody)
    except msgspec.DecodeError as error:
        raise Invalid(f"Validation error: {error}") from error
