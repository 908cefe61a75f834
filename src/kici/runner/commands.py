"""Running one command: its process, its output, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from signal import SIGKILL, SIGTERM
from typing import Protocol

from msgspec import Struct

from kici.engine import failure
from kici.runner.processes import Child, descendants, end_descendants, gone, signal_all
from kici.sdk.context import MAX_CAPTURE_BYTES, Result
from kici.sdk.errors import CommandFailed

READ_BYTES = 65_536
TAIL_BYTES = 16_384
_TAIL_LINES = 20


class Invocation(Struct, frozen=True):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole of it."""
    cwd: str
    check: bool = True
    input: bytes | None = None
    timeout_ms: int | None = None
    quiet: bool = False
    capture: bool = False


class Finished(Struct, frozen=True):
    result: Result
    stdout: bytes = b""
    """Only of an invocation with `capture`."""


class Log(Protocol):
    """Awaiting it is the back-pressure: the command's pipe fills up while it does."""

    async def __call__(self, data: bytes, /, *, captured: bool = False) -> None: ...


async def execute(
    wanted: Invocation,
    log: Log,
    leave: Callable[[asyncio.Task[None]], None],
    grace_s: Callable[[], float],
) -> Finished:
    """Run a command to its end. Raises `CommandFailed`.

    What it writes goes to `log` while it runs. Processes that it leaves behind with its output open do not delay its
    end; reading on from them is a task that is given to `leave`. A timeout, or cancelling this call, ends the command's
    whole tree: SIGTERM, `grace_s()`, SIGKILL.
    """
    began = time.monotonic()
    tail, captured_tail = Tail(), Tail()
    kept = bytearray()

    async def heard(data: bytes) -> None:
        tail.add(data)
        if not wanted.quiet:
            await log(data)

    async def captured(data: bytes) -> None:
        if len(kept) <= MAX_CAPTURE_BYTES:
            kept.extend(data)
        captured_tail.add(data)
        if not wanted.quiet:
            await log(data, captured=True)

    running = _start(wanted, heard, captured)
    reason, timed_out = "", False
    try:
        limit = None if wanted.timeout_ms is None else wanted.timeout_ms / 1000
        async with asyncio.timeout(limit):
            await running.child.wait()
    except TimeoutError:
        reason, timed_out = f"it ran longer than {limit:g} s", True
        await running.end(grace_s())
    except BaseException:
        await running.end(grace_s())
        await running.output_read()
        raise
    finally:
        for task in running.tasks:
            leave(task)
    await running.output_read()
    code = await running.child.wait()
    if not reason and len(kept) > MAX_CAPTURE_BYTES:
        reason = f"it wrote more than {MAX_CAPTURE_BYTES:,} bytes: write them to a file"
    if reason or (wanted.check and code):
        killed = f"killed by {failure.signal_name(-code)}" if code < 0 else ""
        raise CommandFailed(
            wanted.argv,
            None if reason or killed else code,
            _lines(tail.text() or captured_tail.text(), _TAIL_LINES),
            reason or killed,
            signal="" if reason else failure.signal_of(code),
            timed_out=timed_out,
        )
    return Finished(Result(wanted.argv, code, time.monotonic() - began), bytes(kept))


def _lines(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])


class _Running:
    def __init__(self, child: Child, pumps: Sequence[_Pump], feeder: _Feeder | None) -> None:
        self.child = child
        self._pumps = pumps
        self._feeder = feeder
        self.tasks = [asyncio.create_task(pump.run()) for pump in pumps]
        if feeder:
            self.tasks.append(asyncio.create_task(feeder.run()))

    async def output_read(self) -> None:
        """All that the command itself has written: it has ended, so that is what the pipes hold now."""
        if self._feeder:
            self._feeder.stop()
        for pump in self._pumps:
            await pump.rest()

    async def end(self, grace_s: float) -> None:
        """The command and all below it. Cancelling this does not stop it."""
        await asyncio.shield(asyncio.ensure_future(self._end(grace_s)))

    async def _end(self, grace_s: float) -> None:
        tree = [self.child.pid, *descendants(self.child.pid)]
        signal_all(tree, SIGTERM)
        await gone(tree, grace_s)
        await end_descendants(self.child.pid, grace_s=0)
        if self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, SIGKILL)
        await self.child.wait()


def _start(
    wanted: Invocation, heard: Callable[[bytes], Awaitable[None]], captured: Callable[[bytes], Awaitable[None]]
) -> _Running:
    try:
        process = subprocess.Popen(
            wanted.argv,
            env=dict(wanted.env),
            cwd=wanted.cwd,
            stdin=subprocess.DEVNULL if wanted.input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if wanted.capture else subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
    except FileNotFoundError as error:
        if error.filename == wanted.cwd and not os.path.isdir(wanted.cwd):
            raise CommandFailed(wanted.argv, None, "", f"its directory {wanted.cwd} does not exist") from None
        raise CommandFailed(wanted.argv, 127, "", f"there is no program {wanted.argv[0]!r} on PATH") from None
    except (OSError, ValueError) as error:
        raise CommandFailed(wanted.argv, 126, "", f"it cannot be started: {error}") from None

    def ended(code: int) -> None:
        process.returncode = code  # we have reaped it, not Popen

    assert process.stdout
    pumps = [_Pump(_own(process.stdout), captured if wanted.capture else heard)]
    if process.stderr:
        pumps.append(_Pump(_own(process.stderr), heard))
    feeder = _Feeder(_own(process.stdin), wanted.input or b"") if process.stdin else None
    return _Running(Child(process.pid, on_exit=ended), pumps, feeder)


def _own(pipe: object) -> int:
    """Popen's end of a pipe as a descriptor that only we close, and that does not block."""
    descriptor = os.dup(pipe.fileno())  # type: ignore[attr-defined]
    pipe.close()  # type: ignore[attr-defined]
    os.set_blocking(descriptor, False)
    return descriptor


class _Pump:
    """Reads one pipe to its end."""

    def __init__(self, descriptor: int, give: Callable[[bytes], Awaitable[None]]) -> None:
        self._fd = descriptor
        self._give = give
        self._wake = asyncio.Event()
        self._last_look = False
        self._empty = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._readable)
        try:
            while True:
                last_look, self._last_look = self._last_look, False
                try:
                    data = os.read(self._fd, READ_BYTES)
                except BlockingIOError:
                    if last_look:
                        self._empty.set()
                    await self._wake.wait()
                    self._wake.clear()
                    loop.add_reader(self._fd, self._readable)
                    continue
                if not data:
                    return
                self._last_look = self._last_look or last_look
                await self._give(data)
        finally:
            loop.remove_reader(self._fd)
            os.close(self._fd)
            self._empty.set()

    async def rest(self) -> None:
        """Returns when what the pipe holds at this moment has been given."""
        self._last_look = True
        self._wake.set()
        await self._empty.wait()

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)  # until we have read
        self._wake.set()


class _Feeder:
    """Writes a command's input, and closes it."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        self._fd = descriptor
        self._data = memoryview(data)
        self._writable = asyncio.Event()
        self._stopped = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._data and not self._stopped:
                try:
                    self._data = self._data[os.write(self._fd, self._data) :]
                except BlockingIOError:
                    self._writable.clear()
                    loop.add_writer(self._fd, self._writable.set)
                    await self._writable.wait()
                    loop.remove_writer(self._fd)
                except BrokenPipeError:  # it does not want to read all of it
                    return
        finally:
            loop.remove_writer(self._fd)
            os.close(self._fd)

    def stop(self) -> None:
        self._stopped = True
        self._writable.set()


class Tail:
    """The end of a stream: whole lines, so that no piece of a secret is among them that nobody would recognise."""

    def __init__(self) -> None:
        self._kept = b""
        self._cut = False

    def add(self, data: bytes) -> None:
        self._cut = self._cut or len(self._kept) + len(data) > TAIL_BYTES
        self._kept = (self._kept + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def text(self) -> str:
        start = 0
        if self._cut:
            found = re.search(rb"[\r\n]", self._kept)
            start = found.end() if found else len(self._kept)
        return self._kept[start:].decode(errors="replace")
