"""`ctx.sh`: a command as an object that is awaited, or run from a thread."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from kici.runner import template
from kici.runner.capture import Capture
from kici.runner.commands import Finished, Invocation, Tail, execute
from kici.runner.environment import Environment
from kici.runner.link import Link
from kici.sdk.context import Result
from kici.sdk.durations import Duration, milliseconds
from kici.sdk.errors import CommandFailed, CommandInvalid, OutputInvalid
from kici.wire.runner import FromRunner, Output

T = TypeVar("T")
_SHELLS = {"bash": ("bash", "-euo", "pipefail", "-c"), "sh": ("sh", "-eu", "-c")}


class Doing(Generic[T]):
    """A `kici.sdk.Pending`: nothing has started."""

    def __init__(self, activity: Activity, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._activity = activity
        self._make = make

    def __await__(self) -> Generator[Any, Any, T]:
        return self._make().__await__()

    def run(self) -> T:
        return self._activity.run_blocking(self._make)


class Activity:
    """What one attempt of a step does besides its own code, so that it can be stopped as a whole."""

    def __init__(self, index: int, link: Link, capture: Capture, environment: Environment) -> None:
        self.index = index
        self.environment = environment
        self.grace_s = 5.0
        """Between SIGTERM and SIGKILL when it is stopped."""
        self._link = link
        self._capture = capture
        self._loop = asyncio.get_running_loop()
        self._blocking: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[None]] = set()
        self._stopped = ""
        self._tail = Tail()
        self._captured = Tail()

    def tell(self, message: FromRunner) -> None:
        """Raises `RuntimeError` when the step has ended, and code of it still runs."""
        if not self._capture.tell(self.index, message):
            raise RuntimeError("the step has ended: what is told now would stand with no step")

    async def log(self, data: bytes, /, *, captured: bool = False) -> None:
        """Of a command; `captured`: it is what the step reads as a value, and not what went wrong."""
        (self._captured if captured else self._tail).add(data)
        if self._capture.is_running(self.index):
            await self._link.post(Output(self.index, data))

    def last_output(self) -> str:
        """The last lines that its commands have written to the log."""
        return self._tail.text() or self._captured.text()

    def run_blocking(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """From a thread. Raises `CommandFailed` when the step is stopped meanwhile."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise RuntimeError("use `await` here: .run() blocks, and is for steps that are written as `def`")
        try:
            return asyncio.run_coroutine_threadsafe(self._tracked(make), self._loop).result()
        except (asyncio.CancelledError, TimeoutError):
            if self._stopped:
                raise CommandFailed((), None, "", self._stopped) from None
            raise

    async def _tracked(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._stopped:
            raise CommandFailed((), None, "", self._stopped)
        task = asyncio.current_task()
        assert task
        self._blocking.add(task)
        try:
            return await make()
        finally:
            self._blocking.discard(task)

    def stop(self, reason: str, grace_s: float) -> None:
        """End what threads wait for, and let them start nothing more. What coroutines wait for ends with them."""
        self._stopped = reason
        self.grace_s = grace_s
        for task in self._blocking:
            task.cancel()

    def leave(self, task: asyncio.Task[None]) -> None:
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def close(self) -> None:
        """Once none of its processes is left: reads the rest of their output."""
        if self._left:
            done, late = await asyncio.wait(self._left, timeout=5)
            for task in late:
                task.cancel()
            for task in done:
                task.result()


class ShCommand:
    """A `kici.sdk.Command`."""

    def __init__(self, activity: Activity, prepare: Callable[[bool], Invocation]) -> None:
        self._activity = activity
        self._prepare = prepare

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._result().__await__()

    def run(self) -> Result:
        return self._activity.run_blocking(self._result)

    def text(self) -> Doing[str]:
        return Doing(self._activity, self._text)

    def lines(self) -> Doing[list[str]]:
        async def lines() -> list[str]:
            text = await self._text()
            return text.split("\n") if text else []

        return Doing(self._activity, lines)

    def json(self, type: Any = Any, /) -> Doing[Any]:
        async def decoded() -> Any:
            finished = await self._execute(capture=True)
            try:
                return msgspec.json.decode(finished.stdout, type=type)
            except msgspec.DecodeError as error:
                raise OutputInvalid(f"what the command wrote is not the JSON that was wanted: {error}") from error

        return Doing(self._activity, decoded)

    def ok(self) -> Doing[bool]:
        async def ok() -> bool:
            try:
                return (await self._result()).ok
            except CommandFailed as error:
                if error.exit_code is None:
                    raise
                return False

        return Doing(self._activity, ok)

    async def _result(self) -> Result:
        return (await self._execute(capture=False)).result

    async def _text(self) -> str:
        return (await self._execute(capture=True)).stdout.decode(errors="replace").rstrip("\r\n")

    async def _execute(self, *, capture: bool) -> Finished:
        activity = self._activity
        with suppress(ValueError, OSError, AttributeError):  # code may have closed or replaced it
            sys.stdout.flush()  # a print without a newline stands before what the command writes
        return await execute(self._prepare(capture), activity.log, activity.leave, lambda: activity.grace_s)


class Options(Struct, frozen=True):
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    check: bool = True
    input: str | bytes | None = None
    timeout: Duration | None = None
    quiet: bool = False
    shell: str = "bash"


def command(activity: Activity, root: str, wanted: object, options: Options, values: Mapping[str, object]) -> ShCommand:
    """Raises `CommandInvalid` at once; the environment is taken when the command starts."""
    argv = argv_of(wanted, options.shell, values)
    try:
        timeout_ms = None if options.timeout is None else milliseconds(options.timeout)
    except ValueError as error:
        raise CommandInvalid(f"timeout: {error}") from error
    extra = {name: template.word(f"env {name}", value) for name, value in (options.env or {}).items()}
    cwd = os.path.join(root, options.cwd) if options.cwd else root

    def prepare(capture: bool) -> Invocation:
        return Invocation(
            argv=argv,
            env={**activity.environment.variables(), **extra},
            cwd=cwd,
            check=options.check,
            input=options.input.encode() if isinstance(options.input, str) else options.input,
            timeout_ms=timeout_ms,
            quiet=options.quiet,
            capture=capture,
        )

    return ShCommand(activity, prepare)


def argv_of(wanted: object, shell: str, values: Mapping[str, object]) -> tuple[str, ...]:
    if shell not in _SHELLS:
        raise CommandInvalid(f"shell is {shell!r}: it is bash or sh; run another program by a list")
    if isinstance(wanted, str):
        text = template.fill(wanted, values)
    elif hasattr(wanted, "strings") and hasattr(wanted, "interpolations"):
        if values:
            raise CommandInvalid(f"{next(iter(values))} is given beside a t-string: put it into the t-string")
        text = template.fill_interpolated(wanted.strings, wanted.interpolations)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, (bytes, bytearray)) and wanted:
        if values:
            raise CommandInvalid(f"{next(iter(values))} is given beside a list: put it into the list")
        return tuple(template.word(f"argument {number}", one) for number, one in enumerate(wanted))
    else:
        raise CommandInvalid(f"a command is text or a list of words, not {wanted!r}")
    if not text.strip() or "\0" in text:
        raise CommandInvalid("the command is empty" if not text.strip() else "the command contains a NUL character")
    return (*_SHELLS[shell], text)
