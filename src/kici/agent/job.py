"""One attempt of one job, from its dispatch to the report of its end: a sequence of phases.

accept · place (`standby`) · fetch · verify `.kici/` · work tree · context · runner — and, once the orchestrator has
acknowledged that we accepted: run · report · clean up. Everything before `run` goes to the log of step −1, and a
failure there says that no user code has run. A place has its runner already, or starts it beside the checkout; it gets
its work only when all of that is done.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from kici.agent import ca_bundle, checkout, context, environment, facts, machine, verify_kici
from kici.agent.dependencies import Dependencies
from kici.agent.error_groups import leaves
from kici.agent.errors import AgentError, DiskFull, PreparationFailed, PreparationTimeout, is_disk_full
from kici.agent.execution import Execution
from kici.agent.hooks import BEFORE_CHECKOUT, BEFORE_JOB, Hooks, about_job
from kici.agent.job_api import JobApi
from kici.agent.masking import Secrets
from kici.agent.mirrors import Mirrors
from kici.agent.outbox import Frame, Outbox
from kici.agent.reporter import Reporter
from kici.agent.sandbox.choose import Choice
from kici.agent.secret_forms import is_too_short
from kici.agent.settings import Settings
from kici.agent.silence import Silence
from kici.agent.standby import Place, Standby
from kici.agent.workspace import Workspace
from kici.engine import evaluation, labels, timeouts
from kici.engine.failure import Reason
from kici.engine.lifecycle import JobStatus, StepStatus
from kici.engine.lockfile import PATH, LockJob, LockSandbox
from kici.wire.agent import AttemptRef, Dispatch, JobAccepted, JobStatusChanged
from kici.wire.context import JobContext
from kici.wire.runner import MIN_SECRET_BYTES, JobEnded, Start

log = structlog.get_logger(__name__)

_LEFT_OPEN = {
    JobStatus.SUCCESS: StepStatus.SUCCESS,
    JobStatus.SKIPPED: StepStatus.SUCCESS,
    JobStatus.DRIFT_DROPPED: StepStatus.SUCCESS,
    JobStatus.CANCELLED: StepStatus.CANCELLED,
}
"""A job's end → what a step without one becomes; of all other ends failed. In a job none of whose steps began that step
is the preparation, which has done its work."""


class Workshop(Struct, frozen=True):
    """What every job of this agent uses."""

    settings: Settings
    choice: Choice
    outbox: Outbox
    silence: Silence
    standby: Standby
    dependencies: Dependencies
    mirrors: Mirrors
    hooks: Hooks


class NotOurs(AgentError):
    """The orchestrator has given the job to somebody else, or wants nothing more of it: no report."""

    code = "not_ours"


class _Prepared(Struct, frozen=True):
    execution: Execution
    start: Start


class Job:
    def __init__(self, dispatch: Dispatch, shop: Workshop) -> None:
        self.ref = AttemptRef(dispatch.job_id, dispatch.attempt)
        self._dispatch = dispatch
        self._shop = shop
        self._api = JobApi(shop.settings.http_url, dispatch)
        self._secrets = Secrets([dispatch.job_token, dispatch.checkout.password])
        self._reporter = Reporter(
            self.ref, shop.outbox, self._secrets, self._api, log_limit_bytes=shop.settings.max_log_size_bytes
        )
        self._limit_ms = dispatch.timeout_ms
        self._began = 0.0
        self._preparation: asyncio.Timeout | None = None
        self._execution: Execution | None = None
        self._accepted: Frame | None = None
        self._cancelled = ""
        self._silenced = False
        self._withdrawn = False
        self._has_packages = False
        self._known: JobContext | None = None
        self.reported: Frame | None = None
        """The frame that tells the end."""

    # ── from outside ─────────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, reason: str, *, force: bool = False) -> None:
        """The job ends as cancelled; its steps get its grace period, unless `force`."""
        self._cancelled = self._cancelled or reason or "cancelled"
        self._stop(reason, force=force)

    @property
    def ended(self) -> JobStatusChanged | None:
        """How, once it is told."""
        body = self.reported.body if self.reported else None
        return body if isinstance(body, JobStatusChanged) else None

    def withdraw(self) -> None:
        """It is not ours any more: kill it and say nothing."""
        self._withdrawn = True
        self._shop.outbox.withdraw(self.ref)
        if self.reported is None:
            self._stop("withdrawn", force=True)

    def _stop(self, reason: str, *, force: bool) -> None:
        if self._execution:
            self._execution.cancel(reason, force=force)
        elif self._preparation:
            self._preparation.reschedule(asyncio.get_running_loop().time())

    # ── the sequence ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """To the report of its end (`reported`), and until nothing of it is left on this machine."""
        with structlog.contextvars.bound_contextvars(job=self.ref.job_id, attempt=self.ref.attempt):
            log.info("job taken", name=self._dispatch.name)
            self._began = asyncio.get_running_loop().time()
            self._accepted = self._shop.outbox.put(JobAccepted(self.ref.job_id, self.ref.attempt))
            self._reporter.prepare()
            async with AsyncExitStack() as leaving:
                try:
                    async with AsyncExitStack() as processes:
                        ended = await self._work(leaving, processes)
                except NotOurs as reason:
                    self._withdrawn = True
                    log.warning("job dropped", reason=str(reason))
                else:
                    # Only now: no process of the job is left when its end is told.
                    self._report(ended)

    async def _work(self, leaving: AsyncExitStack, processes: AsyncExitStack) -> JobStatusChanged:
        limit = asyncio.timeout(self._limit_ms / 1000 if self._limit_ms else None)
        try:
            async with limit as self._preparation:
                prepared = None if self._is_stopped() else await self._prepare(leaving, processes)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self._is_stopped() and self._limit_ms:
                return self._failed_early(PreparationTimeout(timeouts.of_job(self._limit_ms)))
            prepared = None
        except PreparationFailed as error:
            return self._failed_early(error)
        finally:
            self._preparation = None
        if prepared is None or self._is_stopped():
            return self._stopped_early()
        return await self._execute(prepared)

    def _is_stopped(self) -> bool:
        return bool(self._cancelled) or self._withdrawn

    async def _prepare(self, leaving: AsyncExitStack, processes: AsyncExitStack) -> _Prepared:
        place = await leaving.enter_async_context(self._shop.standby.take())
        processes.push_async_callback(place.vacate)
        space = place.space
        leaving.push_async_callback(self._after, space)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(place.ready())
                known = group.create_task(self._context())
                locked = group.create_task(self._check_out(space, known))
                group.create_task(self._acknowledged())
        except ExceptionGroup as errors:
            if any(is_disk_full(error) for error in leaves(errors)):
                raise DiskFull(self._shop.settings.work_dir) from errors
            raise _most_telling(errors) from errors
        await self._keep_apart(locked.result().job, place)
        execution = place.execution
        problem = machine.limit(locked.result().job, execution, self._shop.settings.limits, self._reporter.say)
        if problem:
            raise PreparationFailed(problem)
        return _Prepared(execution, self._start(space, execution, locked.result(), known.result()))

    async def _keep_apart(self, job: LockJob, place: Place) -> None:
        """That the job is kept as it asks: the orchestrator has looked at our labels, and they must be true."""
        if job.sandbox is None:
            return
        choice = self._shop.choice
        if labels.sandbox_label(job.sandbox) not in choice.labels:
            raise PreparationFailed(
                f"the job asks for sandbox {job.sandbox.value!r}, and this agent has {choice.sandbox.name}: see"
                " KICI_SANDBOX there"
            )
        if job.sandbox is LockSandbox.IMAGE_BUILD and choice.image_builds not in (None, choice.sandbox):
            await place.remake(choice.image_builds)

    async def _acknowledged(self) -> None:
        assert self._accepted
        refusal = await self._accepted.outcome
        if refusal is not None:
            raise NotOurs(refusal)

    async def _context(self) -> JobContext:
        known = await context.load(self._dispatch, self._api, facts.of_agent(self._shop.settings, self._shop.choice))
        for name, value in known.secrets.items():
            self._secrets.add(value)
            if value and is_too_short(value):
                self._reporter.say(
                    f"secret {name} is too short to be hidden: give it at least {MIN_SECRET_BYTES} bytes"
                )
        self._known = known
        return known

    async def _check_out(self, space: Workspace, known: asyncio.Task[JobContext]) -> verify_kici.Locked:
        wanted = self._dispatch.checkout
        source = checkout.remote(self._dispatch, self._shop.settings.http_url)
        await self._before(BEFORE_CHECKOUT, space, known)
        if self._shop.settings.ca_bundle:
            ca_bundle.hand_over(self._shop.settings.ca_bundle, space)
        git = await checkout.fetch(space, source, wanted, self._shop.mirrors, self._reporter.say)
        files = await checkout.kici_files(git, wanted.workflow_sha)
        lock = verify_kici.verify(files, self._dispatch.lock_sha256)
        carried = (await known).definition
        locked = verify_kici.find(lock, self._dispatch.workflow, self._dispatch.job, carried)
        verify_kici.write(files, space.kici)
        self._reporter.names(locked.job)
        self._reporter.say(f"verified {len(files)} files under .kici/ at {wanted.workflow_sha}")
        self._has_packages = await self._shop.dependencies.prepare(
            space, files, await known, self._reporter.say, locked.workflow.registries
        )
        if locked.job.checkout:
            await checkout.work_tree(git, source, wanted, locked.job.checkout, self._shop.mirrors, self._reporter.say)
            self._reporter.say(f"checked out {wanted.sha}")
        else:
            checkout.no_work_tree(space)
        await self._before(BEFORE_JOB, space, known)
        return locked

    async def _before(self, hook: str, space: Workspace, known: asyncio.Task[JobContext]) -> None:
        if self._shop.hooks.has(hook):  # else nothing waits for the context
            about = about_job(self._dispatch, await known, space.root)
            await self._shop.hooks.before(hook, about, self._reporter.say)

    async def _after(self, space: Workspace) -> None:
        """No process of the job is left, and its directory is still there."""
        told = self.ended
        outcome = {"KICI_OUTCOME": told.status if told else "withdrawn", "KICI_REASON": told.reason if told else ""}
        await self._shop.hooks.after(about_job(self._dispatch, self._known, space.root) | outcome, self._reporter.clean)

    def _start(self, space: Workspace, execution: Execution, locked: verify_kici.Locked, known: JobContext) -> Start:
        def inside(path: Path) -> str:
            return execution.path(path)

        return Start(
            root=inside(space.src),
            kici_dir=inside(space.kici),
            module=locked.workflow.source.file.removeprefix(PATH.partition("/")[0] + "/"),
            export=locked.workflow.export,
            context=known,
            job=msgspec.structs.replace(
                locked.job,
                timeout_ms=self._limit_ms or locked.job.timeout_ms,
                permissions=locked.workflow.permissions,
            ),
            env=environment.of_job(
                known,
                sha=self._dispatch.checkout.sha,
                ref=self._dispatch.checkout.ref,
                home=inside(space.home),
                tmp=inside(space.tmp),
                machine=execution.machine(),
                ca_bundle=inside(space.root / ca_bundle.FILE) if self._shop.settings.ca_bundle else "",
            ),
            tmp=inside(space.tmp),
            packages=inside(space.packages) if self._has_packages else "",
        )

    async def _execute(self, prepared: _Prepared) -> JobStatusChanged:
        assert self._accepted
        limit = self._dispatch.kill_after_silence_s
        if limit is not None and self._shop.silence.left(limit, self._accepted.sent_at) <= 0:
            raise self._given_up(limit)
        self._execution = prepared.execution
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch_silence(limit))
            spent_s = asyncio.get_running_loop().time() - self._began
            ended = await prepared.execution.run(prepared.start, sink=self._reporter, spent_s=spent_s)
            watch.cancel()
        if self._withdrawn:
            raise NotOurs("withdrawn")
        if self._silenced and limit is not None:
            raise self._given_up(limit)
        return self._ended(ended, evaluation.output_limit(prepared.start.job))

    async def _watch_silence(self, limit: float | None) -> None:
        """Kill user code before the next attempt may start elsewhere."""
        assert self._accepted
        if limit is not None:
            await self._shop.silence.exceeds(limit, self._accepted.sent_at)
            self._silenced = True
            self._stop(f"the orchestrator was silent for {limit:g} s", force=True)

    def _given_up(self, limit: float) -> NotOurs:
        """Nothing is reported: an attempt that the next hello does not list is settled, and the next one starts."""
        self._shop.outbox.withdraw(self.ref)
        return NotOurs(f"the orchestrator was silent for {limit:g} s, and the job may start again elsewhere")

    # ── how it ends ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _stopped_early(self) -> JobStatusChanged:
        if self._withdrawn:
            raise NotOurs("withdrawn")
        self._reporter.not_prepared(self._cancelled, StepStatus.CANCELLED, Reason.CANCELLED)
        return self._ending(JobStatus.CANCELLED, self._cancelled, JobEnded("", reason=Reason.CANCELLED))

    def _failed_early(self, error: PreparationFailed) -> JobStatusChanged:
        self._reporter.not_prepared(str(error), StepStatus.FAILED, error.reason)
        return self._ending(JobStatus.FAILED, str(error), JobEnded("", reason=error.reason), before_user_code=True)

    def _ended(self, ended: JobEnded, limit: int) -> JobStatusChanged:
        size = len(msgspec.msgpack.encode(ended.outputs))
        if size > limit:
            return self._ending(
                JobStatus.FAILED,
                f"the steps' outputs have {size:,} bytes; the limit is {limit:,}: use an artifact",
                msgspec.structs.replace(ended, outputs={}, reason=Reason.ERROR),
            )
        error = ended.error or (self._cancelled if ended.status == JobStatus.CANCELLED else "")
        return self._ending(JobStatus(ended.status), error, ended)

    def _ending(
        self, status: JobStatus, error: str, ended: JobEnded, *, before_user_code: bool = False
    ) -> JobStatusChanged:
        left_open = _LEFT_OPEN.get(status, StepStatus.FAILED)
        told = ("", "") if left_open is StepStatus.SUCCESS else (error, ended.reason)
        self._reporter.close(left_open, *told)
        return JobStatusChanged(
            job_id=self.ref.job_id,
            attempt=self.ref.attempt,
            status=status,
            at_ms=self._reporter.now_ms(),
            error=self._reporter.clean(error),
            outputs=self._secrets.mask_all(ended.outputs),
            failed_before_user_code=before_user_code,
            reason=ended.reason,
            exit_code=ended.exit_code,
            signal=ended.signal,
            peak_memory_bytes=ended.peak_memory_bytes,
        )

    def fail(self, error: str) -> None:
        """The agent itself has made a mistake: the job must not hang because of it."""
        if not self._withdrawn and self.reported is None:
            early = self._execution is None
            self._report(
                self._ending(JobStatus.FAILED, error, JobEnded("", reason=Reason.RUNNER), before_user_code=early)
            )

    def _report(self, ended: JobStatusChanged) -> None:
        # Without the sentence: it ends with a line of the job's output, which is none of this log's.
        log.info("job ended", status=ended.status, reason=ended.reason)
        self.reported = self._shop.outbox.put(ended)


def _most_telling(errors: ExceptionGroup[Exception]) -> Exception:
    """Several phases may fail side by side. One that we did not expect comes first, so that it is not hidden."""
    found = leaves(errors)
    unexpected = [error for error in found if not isinstance(error, PreparationFailed | NotOurs)]
    dropped = [error for error in found if isinstance(error, NotOurs)]
    return [*unexpected, *dropped, *found][0]
