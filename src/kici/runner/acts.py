"""One act of a job: an attempt of a step, a hook, an init command. Its limit, what is left of it, and how it ended."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.failure import Reason
from kici.errors import KiciError
from kici.runner import processes
from kici.runner.capture import Capture, step_index
from kici.runner.context import JobState, StepContext
from kici.runner.environment import MARK, Branch, Written
from kici.runner.link import Link
from kici.runner.own_state import OwnState
from kici.runner.shell import Activity
from kici.runner.telling import sentence, traceback_text
from kici.sdk.errors import CommandFailed
from kici.sdk.facts import Outcome as JobOutcome

T = TypeVar("T")
STOP_GRACE_S = 5.0
"""What the commands of an act, and then its own code, get to end in after its timeout."""
_LEFT_GRACE_S = 0.2
"""What processes that an act has left behind get to end in."""


class Ended(Struct, frozen=True):
    """How an act ended."""

    status: str
    """`success`, `failed`, `cancelled`"""
    error: str = ""
    exit_code: int | None = None
    exception: BaseException | None = None
    reason: Reason = Reason.ERROR
    """Of one that did not succeed."""
    last_lines: str = ""
    """Of the output of its commands."""
    stuck: bool = False
    """Its code did not stop: nothing that needs a thread of the author's can run after it."""
    value: Any = None
    written: Written = Written({}, "")

    @property
    def signal(self) -> str:
        return self.exception.signal if isinstance(self.exception, CommandFailed) else ""


class Interrupted(KiciError):
    """The job was cancelled."""

    code = "interrupted"


class What(Struct, frozen=True):
    """A function of ctx, or a command."""

    fn: Callable[[Any], Any] | None
    command: str | None


class How(Struct, frozen=True):
    timeout_ms: int
    env: Mapping[str, str] = {}
    """Expanded; until the act ends."""
    directory: str = ""
    """Absolute; empty = the checkout."""
    shell: str = "bash"
    outcome: JobOutcome = JobOutcome("running")
    until: float | None = None
    """Of an act that runs although the job was cancelled: when the loop's clock ends it at the latest."""
    subject: str = "it"
    """Who ran longer than its timeout."""


class Acts:
    """What the acts of one job share."""

    def __init__(
        self,
        state: JobState,
        link: Link,
        capture: Capture,
        kici_dir: str,
        tmp: str,
        own_state: OwnState | None = None,
    ) -> None:
        self.state = state
        self._own_state = own_state or OwnState()
        self.link = link
        self.capture = capture
        self._kici_dir = kici_dir
        self._tmp = tmp

    def beside(self, state: JobState) -> Acts:
        """For one of several steps that run at the same time."""
        return Acts(state, self.link, self.capture, self._kici_dir, self._tmp, self._own_state)

    def context(self, index: int, how: How) -> StepContext:
        activity = Activity(index, self.link, self.capture, self.state.environment)
        return StepContext(self.state, activity, how.directory or self.state.root, how.shell, how.outcome)

    async def perform(self, index: int, what: What, how: How) -> Ended:
        """To its end, and until no process of it is left. The step `index` has begun. What went wrong is in its log."""
        environment = self.state.environment
        files = environment.files(self._tmp)
        for name, value in how.env.items():
            environment.for_this_step(name, value)
        context = self.context(index, how)
        token = step_index.set(index)
        try:
            work = asyncio.ensure_future(_call(what, context))
            ended = await self._limited(work, context.activity, how)
            await self._leave_nothing(context.activity, stopped=ended.status == "cancelled")
            self._explain(ended)
            written = environment.apply(files, self.capture.say)
            if ended.status == "success":
                return Ended("success", value=work.result(), written=written)
            return replace(ended, written=written, last_lines=context.activity.last_output())
        finally:
            step_index.reset(token)

    def say(self, index: int, text: str) -> None:
        token = step_index.set(index)
        try:
            self.capture.say(text)
        finally:
            step_index.reset(token)

    async def ask(self, index: int, function: Callable[[Any], Any]) -> Any:
        """What a function of ctx returns that is asked, not run: a rule. Raises what it raises, and `Interrupted`; no
        time limit of its own, but the job's."""
        context = self.context(index, How(timeout_ms=0))
        token = step_index.set(index)
        try:
            return await self.unless_cancelled(_call(What(function, None), context))
        finally:
            step_index.reset(token)

    async def unless_cancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """What it returns. Raises `Interrupted` if the job is cancelled meanwhile, and what the work raises."""
        task = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(_until(self.state.cancelled))
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=_LEFT_GRACE_S)
                raise Interrupted(self.state.cancelled.reason)
            return task.result()
        finally:
            task.cancel()
            waiting.cancel()

    async def _limited(self, work: asyncio.Future[Any], activity: Activity, how: How) -> Ended:
        cancelled = self.state.cancelled
        limit_s = how.timeout_ms / 1000
        if how.until is not None:
            limit_s = min(limit_s, max(how.until - asyncio.get_running_loop().time(), 0))
            await asyncio.wait((work,), timeout=limit_s)
        else:
            waiting = asyncio.ensure_future(_until(cancelled))
            try:
                await asyncio.wait((work, waiting), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if work.done():
            return _ended(work)
        if cancelled and how.until is None:
            status, reason, grace_s = "cancelled", cancelled.reason, cancelled.grace_s
            kind = Reason.TIMEOUT if cancelled.failed else Reason.CANCELLED
        else:
            kind = Reason.TIMEOUT
            reason = f"{how.subject} ran longer than its timeout of {how.timeout_ms / 1000:g} s"
            if limit_s < how.timeout_ms / 1000:
                reason = f"{how.subject} did not end within the grace period of the job"
            status, grace_s = "failed", STOP_GRACE_S if how.until is None else 0.5
        activity.stop(reason, grace_s)
        work.cancel()
        await asyncio.wait((work,), timeout=grace_s + 1)
        if not work.done():
            return Ended(status, f"{reason}, and its code did not stop", reason=kind, stuck=True)
        if not work.cancelled():
            work.exception()  # what it raised while it was stopped tells nothing new
        return Ended(status, reason, reason=kind)

    async def _leave_nothing(self, activity: Activity, *, stopped: bool) -> None:
        environment = self.state.environment
        own = _all
        if isinstance(environment, Branch):
            # Others run beside it: only what carries its mark, or descends from that, is its own. What has shed the
            # mark ends with the group.
            mark = f"{MARK}={environment.mark}".encode()
            own = lambda pid: _carries(pid, mark)  # noqa: E731
        if left := [pid for pid in processes.descendants(os.getpid()) if own(pid)]:
            if not stopped:
                self.capture.say(f"[kici] still running at its end, and stopped: {processes.names(left)}")
            grace_s = activity.grace_s if stopped else _LEFT_GRACE_S
            await processes.end_descendants(os.getpid(), grace_s=grace_s, spare=lambda pid: not own(pid))
        if not isinstance(environment, Branch):
            self.tidy()
        await activity.close()

    def tidy(self) -> None:
        """No other step runs: what its code has done to the runner's own process is undone."""
        processes.reap(processes.children(os.getpid()))
        self._own_state.restore()
        self.capture.repair()

    def _explain(self, ended: Ended) -> None:
        """Where it comes from; the sentence itself is told with the end of the step, by the host."""
        error = ended.exception
        if error is None or (isinstance(error, CommandFailed) and not error.__cause__ and not error.__context__):
            return
        self.capture.say(traceback_text(error, self._kici_dir))


def _all(pid: int) -> bool:
    return True


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


async def _until(cancelled: Awaitable[None]) -> None:
    await cancelled


def _ended(work: asyncio.Future[Any]) -> Ended:
    if work.cancelled():
        return Ended("failed", "its code cancelled itself")
    error = work.exception()
    if error is None:
        return Ended("success")
    code = error.exit_code if isinstance(error, CommandFailed) else None
    return Ended("failed", sentence(error), code, error, _reason(error))


def _reason(error: BaseException) -> Reason:
    if isinstance(error, CommandFailed):
        if error.timed_out:
            return Reason.TIMEOUT
        if error.exit_code is not None:
            return Reason.EXIT_CODE
        return Reason.SIGNAL if error.signal else Reason.ERROR
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return Reason.DISK_FULL if full else Reason.ERROR


class Exited(Exception):
    """The code has called `sys.exit`, or raised what is to end a process: it ends the act, not the runner."""

    @classmethod
    def by(cls, error: SystemExit | KeyboardInterrupt) -> Exited:
        if isinstance(error, SystemExit):
            return cls(f"the step called sys.exit({error.code!r})")
        return cls("the step raised KeyboardInterrupt")


async def _call(what: What, context: StepContext) -> Any:
    try:
        if what.fn is None:
            assert what.command is not None
            return (await context.sh(what.command)) and None
        if inspect.iscoroutinefunction(what.fn):
            return await what.fn(context)
        value = await _in_thread(what.fn, context)
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt) as error:
        raise Exited.by(error) from error


async def _in_thread(function: Callable[[Any], Any], context: StepContext) -> Any:
    """Unlike `asyncio.to_thread`, being cancelled does not pretend that the thread has ended: nothing can end it.

    What it returns to be awaited is then not begun any more.
    """
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, _without_exit, function, context)
    cancelled = False
    while True:
        try:
            value = await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.done():
                raise
            cancelled = True
            continue
        if cancelled and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise asyncio.CancelledError
        return value


def _without_exit(function: Callable[[Any], Any], context: StepContext) -> Any:
    try:
        return function(context)
    except (SystemExit, KeyboardInterrupt) as error:
        raise Exited.by(error) from error
