"""A local run from the plan to its end: jobs in the order of their needs, several at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from kici.agent import environment, machine
from kici.agent.sandbox.contract import Limits
from kici.cli.local import own_files, working_copy
from kici.cli.local.board import Board, JobRecord
from kici.cli.local.place import Place, Places
from kici.cli.local.secrets import LocalSecrets
from kici.cli.local.terminal import Terminal
from kici.engine import timeouts
from kici.engine.events import Event
from kici.engine.lifecycle import TERMINAL_JOB, JobStatus
from kici.engine.lockfile import LockCheckout, LockSandbox, LockWorkflow
from kici.engine.plan import PlannedJob
from kici.errors import KiciError
from kici.wire.context import JobContext
from kici.wire.runner import Start

_PERSONAL = ("USER", "LOGNAME", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Of the developer's environment: what tools need to find their caches and accounts. Only without a sandbox."""


class Settings(Struct, frozen=True):
    root: Path
    """Of the repository."""
    copies: working_copy.Copies
    kici: Mapping[str, str]
    """Files under `.kici/`."""
    packages: str
    """Where the workflows' own packages are on this machine; empty = they have none."""
    secrets: LocalSecrets
    env: Mapping[str, str]
    """Variables that the command line gives."""
    in_place: bool
    owner: Callable[[int], int | None]
    boxed: bool
    at_once: int


class LocalRun:
    """One workflow for one event."""

    def __init__(
        self, run_id: str, workflow: LockWorkflow, event: Event, board: Board, settings: Settings, terminal: Terminal
    ) -> None:
        self.workflow = workflow
        self.event = event
        self.board = board
        self.run_id = run_id
        self.started = time.time()
        self.ended = 0.0
        self._settings = settings
        self._terminal = terminal
        self._running: dict[asyncio.Task[None], Place] = {}
        self._cancelled = ""
        self._secret_outputs: dict[str, dict[str, str]] = {}
        """Job → name → value."""

    async def run(self, places: Places) -> None:
        """To the end of its last job. SIGINT and SIGTERM cancel it; the second one kills."""
        with self._interruptible(), self._limited():
            try:
                while self._start_jobs(places) or self._running:
                    done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        del self._running[task]
                        task.result()
                    self._halt()
            finally:
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)
        for job in self.board.jobs.values():
            if not job.started:
                self._terminal.job_ended(job)
        self.ended = time.time()

    def cancel(self, reason: str) -> None:
        force = bool(self._cancelled)
        self._cancelled = self._cancelled or reason
        self.board.cancel_waiting(self._cancelled)
        for place in self._running.values():
            place.execution.cancel(self._cancelled, force=force)

    def _halt(self) -> None:
        """Stop the fan-outs of which a combination has failed, where their job says so."""
        reasons = self.board.halted()
        for place in self._running.values():
            if place.sink.job.name in reasons:
                place.execution.cancel(reasons[place.sink.job.name])

    def _start_jobs(self, places: Places) -> bool:
        """True if some were started."""
        before = len(self._running)
        ready = list(self.board.ready())
        self._terminal.expect(self.board.jobs)
        for warning in self.board.warnings:
            self._terminal.say(f"warning: {warning}")
        self.board.warnings.clear()
        for job in ready:
            if len(self._running) >= self._settings.at_once:
                break
            job.status, job.started = JobStatus.RUNNING, time.time()
            place = places.take(job, self.run_id)
            self._running[asyncio.create_task(self._job(job, place))] = place
        return len(self._running) > before

    async def _job(self, job: JobRecord, place: Place) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fill(job, place))
                group.create_task(_finish(place.ready))
            if remark := _kept_otherwise(job.planned.job.sandbox, boxed=self._settings.boxed):
                self._noted(job)(remark)
            if problem := machine.limit(job.planned.job, place.execution, Limits(), self._noted(job)):
                raise KiciError(problem)
            ended = await place.execution.run(self._start(job, place), sink=place.sink)
            job.outputs, job.told = ended.outputs, ended
            self._secret_outputs[job.name] = place.sink.secret_outputs
            job.end(JobStatus(ended.status), ended.error)
        except* KiciError as errors:
            reason = str(errors.exceptions[0])
            job.end(JobStatus.CANCELLED if self._cancelled else JobStatus.FAILED, reason)
            self._terminal.job_ended(job)
        finally:
            await place.leave()
            if job.status not in TERMINAL_JOB:
                job.end(JobStatus.CANCELLED, "interrupted")

    def _noted(self, job: JobRecord) -> Callable[[str], None]:
        return lambda remark: self._terminal.told(job, f"note: {remark}")

    async def _fill(self, job: JobRecord, place: Place) -> None:
        settings = self._settings
        if ignored := _ignored(job.planned.job.checkout):
            self._terminal.told(
                job, f"note: a local run takes the working tree as it is: checkout's {ignored} change nothing here"
            )
        await asyncio.to_thread(working_copy.copy_kici, settings.root, settings.kici, place.root / "kici")
        if settings.packages and settings.boxed:  # a box does not see the user's cache directory
            await asyncio.to_thread(working_copy.copy_packages, settings.packages, place.root / "packages")
        if place.filled is None and job.planned.job.checkout and not settings.in_place:
            place.filled = asyncio.create_task(asyncio.to_thread(settings.copies.make, place.src))
        if place.filled is not None:
            await place.filled
        if not job.planned.job.checkout:
            await asyncio.to_thread(working_copy.empty, place.src)
        await asyncio.to_thread(working_copy.hand_over, place.src, settings.owner(place.slot))

    def _start(self, job: JobRecord, place: Place) -> Start:
        settings, planned = self._settings, job.planned
        inside = place.execution.path
        index, total = self.board.place(job)
        context = JobContext(
            run_id=self.run_id,
            job_id=f"{self.run_id}-{planned.position}",
            attempt=1,
            workflow=self.workflow.name,
            job=planned.job.name,
            name=planned.name,
            event=self.event,
            matrix=planned.matrix,
            needs=self.board.needed(job),
            env=planned.env,
            environment=planned.environment,
            generated_by=planned.generated_by,
            secrets=settings.secrets.of(planned.environment) | self._handed_over(planned),
            is_local=True,
            fanout_index=index,
            fanout_total=total,
            untouched=own_files.names(home=not settings.boxed, checkout=settings.in_place),
        )
        home = inside(place.root / "home") if settings.boxed else os.environ.get("HOME", str(place.root / "home"))
        tmp = inside(place.root / "tmp")
        variables = environment.of_job(context, sha=self.event.sha, ref="", home=home, tmp=tmp)
        personal = {} if settings.boxed else {name: os.environ[name] for name in _PERSONAL if name in os.environ}
        root = str(settings.root) if settings.in_place and planned.job.checkout else inside(place.src)
        return Start(
            root=root,
            kici_dir=inside(place.root / "kici"),
            module=self.workflow.source.file.removeprefix(".kici/"),
            export=self.workflow.export,
            context=context,
            job=own_files.left_alone(planned.job, home=not settings.boxed, checkout=settings.in_place),
            env=personal | variables | {"KICI_LOCAL": "true"} | dict(settings.env),
            tmp=tmp,
            packages=inside(place.root / "packages") if settings.packages and settings.boxed else settings.packages,
        )

    def _handed_over(self, planned: PlannedJob) -> dict[str, str]:
        """Secret outputs of the jobs that this one needs; of two with one name that of the later one."""
        found: dict[str, str] = {}
        for need in planned.needs:
            found |= self._secret_outputs.get(need.upstream, {})
        return found

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.cancel, f"cancelled by {number.name}")
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """The workflow's own timeout."""
        limit_ms = self.workflow.timeout_ms
        if limit_ms is None:
            yield
            return
        reason = timeouts.of_run(limit_ms)
        timer = asyncio.get_running_loop().call_later(limit_ms / 1000, lambda: self.cancel(reason))
        try:
            yield
        finally:
            timer.cancel()


def _ignored(checkout: bool | LockCheckout) -> str:
    if isinstance(checkout, bool):
        return ""
    plain = LockCheckout()
    return ", ".join(name for name in checkout.__struct_fields__ if getattr(checkout, name) != getattr(plain, name))


def _kept_otherwise(wanted: LockSandbox | None, *, boxed: bool) -> str:
    """What the job's log says of a sandbox that this run does not have."""
    if wanted in (None, LockSandbox.NONE):
        return ""
    if not boxed:
        return f"the job asks for sandbox {wanted.value!r}; here its steps run as you: --sandbox keeps them in one"
    if wanted is LockSandbox.CONTAINER:
        return "the job asks for sandbox 'container'; a local run has no image for it: its steps are in bubblewrap"
    return ""


async def _finish(task: asyncio.Task[None]) -> None:
    await task
