"""One step: its attempts, their limits, what is left of them, and how it ended."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from kici.engine.lockfile import LockStep, Retry
from kici.runner.capture import Capture, step_index
from kici.runner.context import JobState, StepContext
from kici.runner.link import Link
from kici.runner.processes import children, descendants, end_descendants, reap
from kici.runner.shell import Activity
from kici.runner.workflow import sentence, traceback_text
from kici.sdk.errors import CommandFailed
from kici.sdk.steps import Step
from kici.wire.runner import StepEnded, StepStarted

if TYPE_CHECKING:
    from kici.sdk.context import Ctx

STOP_GRACE_S = 5.0
"""What a step's commands, and then its own code, get to end in after its timeout."""
_ERROR_CHARS = 4_000


class Outcome(Struct, frozen=True):
    status: str
    error: str = ""
    exit_code: int | None = None
    exception: BaseException | None = None
    stuck: bool = False
    """Its code did not stop: nothing else can run in this process."""


class StepRunner:
    def __init__(self, state: JobState, link: Link, capture: Capture, kici_dir: str, tmp: str, grace_s: float) -> None:
        self._state = state
        self._link = link
        self._capture = capture
        self._kici_dir = kici_dir
        self._tmp = tmp
        self._grace_s = grace_s

    async def run(self, index: int, step: Step[Any], locked: LockStep) -> Outcome:
        """All attempts. The host has been told of the end when this returns."""
        retry = locked.retry or Retry(attempts=1)
        for attempt in range(1, retry.attempts + 1):
            if (index, attempt) != (0, 1):  # that one has begun with the import of the module
                await self._link.post(StepStarted(index, attempt))
            outcome = await self._attempt(index, step, locked)
            final = attempt == retry.attempts or not self._wants_another(step, outcome)
            await self._end(index, attempt, outcome, final=final)
            if final:
                return outcome
            if await self._pause(retry, attempt):
                # Cancelled while it waited: the step's last word is that.
                await self._link.post(StepStarted(index, attempt + 1))
                outcome = Outcome("cancelled", self._state.cancelled.reason)
                await self._end(index, attempt + 1, outcome, final=True)
                return outcome
        raise AssertionError("a step has at least one attempt")

    async def _end(self, index: int, attempt: int, outcome: Outcome, *, final: bool) -> None:
        error = outcome.error[:_ERROR_CHARS]
        await self._link.post(StepEnded(index, outcome.status, outcome.exit_code, error, attempt, final))

    def _wants_another(self, step: Step[Any], outcome: Outcome) -> bool:
        if outcome.status != "failed" or outcome.stuck or self._state.cancelled:
            return False
        when = step.retry.when if step.retry else None
        if when is None:
            return True
        try:
            return bool(when(outcome.exception or TimeoutError(outcome.error)))
        except Exception as error:  # noqa: BLE001 - it is the author's code
            self._capture.say(f"retry's when failed: {sentence(error)}; the step is not tried again")
            return False

    async def _pause(self, retry: Retry, attempt: int) -> bool:
        """True if the job was cancelled meanwhile."""
        doubled = 2 ** (attempt - 1) if retry.backoff == "exponential" else 1
        delay_ms = min(retry.delay_ms * doubled, retry.max_delay_ms)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._state.cancelled
        except TimeoutError:
            return False
        return True

    async def _attempt(self, index: int, step: Step[Any], locked: LockStep) -> Outcome:
        state, capture = self._state, self._capture
        activity = Activity(index, self._link, capture)
        files = state.environment.files(self._tmp)
        below = locked.working_directory
        directory = os.path.join(state.root, below) if below else state.root
        context = StepContext(state, activity, directory, locked.shell)
        capture.begin(index)
        token = step_index.set(index)
        try:
            work = asyncio.ensure_future(_call(step, context))
            outcome = await self._limited(work, activity, locked.timeout_ms)
            grace = activity.grace_s if outcome.status == "cancelled" else 0.2
            if descendants(os.getpid()):
                await end_descendants(os.getpid(), grace_s=grace)
            reap(children(os.getpid()))
            await activity.close()
            self._explain(outcome)
            written = state.environment.apply(files, capture.say)
            if outcome.status == "success":
                outcome = self._keep(step, work.result(), written)
            await capture.end()
            return outcome
        finally:
            step_index.reset(token)

    async def _limited(self, work: asyncio.Future[Any], activity: Activity, timeout_ms: int) -> Outcome:
        cancelled = asyncio.ensure_future(_until(self._state.cancelled))
        try:
            await asyncio.wait((work, cancelled), timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled.cancel()
        if work.done():
            return _ended(work)
        if self._state.cancelled:
            status, reason, grace_s = "cancelled", self._state.cancelled.reason, self._grace_s
        else:
            status, reason, grace_s = (
                "failed",
                f"it ran longer than its timeout of {timeout_ms / 1000:g} s",
                STOP_GRACE_S,
            )
        activity.stop(reason, grace_s)
        work.cancel()
        await asyncio.wait((work,), timeout=grace_s + 1)
        if not work.done():
            return Outcome(status, f"{reason}, and its code did not stop", stuck=True)
        if not work.cancelled():
            work.exception()  # what it raised while it was stopped tells nothing new
        return Outcome(status, reason)

    def _keep(self, step: Step[Any], value: object, written: dict[str, str]) -> Outcome:
        try:
            self._state.results.keep(step, value, written)
        except Exception as error:  # noqa: BLE001 - a returned object may raise anything when it is read
            self._capture.say(sentence(error))
            return Outcome("failed", sentence(error), exception=error)
        return Outcome("success", exit_code=0 if step.command is not None else None)

    def _explain(self, outcome: Outcome) -> None:
        error = outcome.exception
        if error is None:
            if outcome.error:
                self._capture.say(outcome.error)
        elif isinstance(error, CommandFailed) and not error.__cause__ and not error.__context__:
            self._capture.say(str(error))
        else:
            self._capture.say(traceback_text(error, self._kici_dir))


async def _until(cancelled: Awaitable[None]) -> None:
    await cancelled


def _ended(work: asyncio.Future[Any]) -> Outcome:
    if work.cancelled():
        return Outcome("failed", "its code cancelled itself")
    error = work.exception()
    if error is None:
        return Outcome("success")
    code = error.exit_code if isinstance(error, CommandFailed) else None
    return Outcome("failed", sentence(error), code, error)


class Exited(Exception):
    """The step's code has called `sys.exit`, which ends the step, not the runner."""


async def _call(step: Step[Any], context: StepContext) -> Any:
    try:
        if step.fn is None:
            assert step.command is not None
            return (await context.sh(step.command)) and None
        if inspect.iscoroutinefunction(step.fn):
            return await step.fn(cast("Ctx", context))
        value = await _in_thread(step.fn, context)
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise Exited(f"the step called sys.exit({error.code!r})") from error


async def _in_thread(function: Callable[[Any], Any], context: StepContext) -> Any:
    """Unlike `asyncio.to_thread`, being cancelled does not pretend that the thread has ended: nothing can end it."""
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, _without_exit, function, context)
    while True:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.done():
                raise


def _without_exit(function: Callable[[Any], Any], context: StepContext) -> Any:
    try:
        return function(context)
    except SystemExit as error:
        raise Exited(f"the step called sys.exit({error.code!r})") from error
