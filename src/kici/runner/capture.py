"""What the runner's own process writes goes to the log of the step that writes it.

`print` and `sys.stderr` know their step by a context variable, also in threads and tasks that the step has started.
What writes to descriptors 1 and 2 directly (C code, a `subprocess` without pipes) goes through a pipe to the step that
runs at the time; of several the one that began first.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import select
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar

from kici.runner.link import Link
from kici.runner.processes import libc
from kici.wire.runner import FromRunner, Output

PREPARATION = -1
PIECE_BYTES = 65_536
_AWAY = 100
"""Lowest number of the descriptor that keeps the pipe."""

step_index: ContextVar[int] = ContextVar("step_index", default=PREPARATION)


class Capture:
    """Takes over descriptors 1 and 2 and `sys.stdout`, `sys.stderr`, for good."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        """Held while output is sent, so that none of a step comes after its end."""
        self._running: list[int] = []
        """In the order in which they began."""
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        # Away from the numbers that code may close one after the other.
        self._write_end = fcntl.fcntl(write_end, fcntl.F_DUPFD_CLOEXEC, _AWAY)
        os.close(write_end)
        for descriptor in (1, 2):
            os.dup2(self._write_end, descriptor)
        self._take_streams()
        threading.Thread(target=self._follow, name="kici-capture", daemon=True).start()

    def repair(self) -> None:
        """Descriptors 0 to 2 and the streams, after code that may have closed or replaced them."""
        pipe = _identity(self._write_end)
        if _identity(0) is None:
            null = os.open(os.devnull, os.O_RDONLY)
            if null != 0:
                os.dup2(null, 0)
                os.close(null)
        for descriptor in (1, 2):
            if _identity(descriptor) != pipe:
                os.dup2(self._write_end, descriptor)
        if self._streams != (sys.stdout, sys.stderr) or sys.stdout.closed or sys.stderr.closed:
            self._take_streams()

    def _take_streams(self) -> None:
        sys.stdout = _text(_StepWriter(self))
        sys.stderr = _text(_StepWriter(self))
        self._streams = (sys.stdout, sys.stderr)

    def begin(self, index: int) -> None:
        """From now on this step runs."""
        if index not in self._running:
            self._running.append(index)

    async def end(self, index: int) -> None:
        """The step does not run any more. All that was written until now is with the host when this returns."""
        _flush_buffers()
        if self._lock.acquire(blocking=False):
            try:
                if not self._waiting():
                    self._forget(index)
                    return
            finally:
                self._lock.release()
        await asyncio.to_thread(self._end, index)

    def end_now(self, index: int) -> None:
        """`end`, outside of a loop."""
        _flush_buffers()
        self._end(index)

    def is_running(self, index: int) -> bool:
        return index in self._running

    def write(self, data: bytes) -> None:
        """Of the step in whose context this is called; if that has ended, of the one that runs."""
        with self._lock:
            self._pump()  # what was written to the descriptors before
            index = step_index.get()
            if index not in self._running:
                index = self._first()
            for start in range(0, len(data), PIECE_BYTES):
                self._link.send(Output(index, data[start : start + PIECE_BYTES]))

    def tell(self, index: int, message: FromRunner) -> bool:
        """Send what a step tells, if it still runs: the host takes nothing from one that has ended. False if not."""
        with self._lock:
            if index not in self._running:
                return False
            self._link.send(message)
            return True

    def say(self, text: str) -> None:
        """Lines of our own."""
        _flush_buffers()
        self.write(text.encode(errors="replace") + b"\n")

    def _first(self) -> int:
        return self._running[0] if self._running else PREPARATION

    def _forget(self, index: int) -> None:
        if index in self._running:
            self._running.remove(index)

    def _waiting(self) -> bool:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        return bool(poll.poll(0))

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                self._pump()

    def _end(self, index: int) -> None:
        with self._lock:
            self._pump()
            self._forget(index)

    def _pump(self) -> None:
        """With the lock."""
        while True:
            try:
                data = os.read(self._read_end, PIECE_BYTES)
            except BlockingIOError:
                return
            self._link.send(Output(self._first(), data))


def _flush_buffers() -> None:
    """Python's, and those that C code writes to."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError, AttributeError):  # closed, or replaced by anything
            stream.flush()
    libc().fflush(None)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """None of one that is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _StepWriter(io.RawIOBase):
    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        taken = bytes(data)  # type: ignore[call-overload]
        self._capture.write(taken)
        return len(taken)


def _text(raw: io.RawIOBase) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)
