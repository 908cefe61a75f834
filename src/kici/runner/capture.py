"""What the runner's own process writes goes to the log of the step that writes it.

`print` and `sys.stderr` know their step by a context variable, also in threads and tasks that the step has started.
What writes to descriptors 1 and 2 directly (C code, a `subprocess` without pipes) goes through a pipe to the step that
runs at the time.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys
import threading
from contextvars import ContextVar

from kici.runner.link import Link
from kici.runner.processes import libc
from kici.wire.runner import Output

PREPARATION = -1
PIECE_BYTES = 65_536

step_index: ContextVar[int] = ContextVar("step_index", default=PREPARATION)


class Capture:
    """Takes over descriptors 1 and 2 and `sys.stdout`, `sys.stderr`, for good."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self.running = PREPARATION
        """The step that runs. Output of a task that has outlived its step is counted to it."""
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        for descriptor in (1, 2):
            os.dup2(write_end, descriptor)
        os.close(write_end)
        sys.stdout = _text(_StepWriter(self))
        sys.stderr = _text(_StepWriter(self))
        threading.Thread(target=self._follow, name="kici-capture", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Of the step in whose context this is called."""
        if self._waiting():
            self._pump()  # what was written to the descriptors before
        index = step_index.get()
        if index != self.running:
            index = self.running
        for start in range(0, len(data), PIECE_BYTES):
            self._link.send(Output(index, data[start : start + PIECE_BYTES]))

    def say(self, text: str) -> None:
        """Lines of our own."""
        self.write(text.encode(errors="replace") + b"\n")

    async def flush(self) -> None:
        """Returns when all that was written so far is with the host."""
        _flush_buffers()
        if self._lock.locked() or self._waiting():
            await asyncio.to_thread(self._pump)

    def close(self) -> None:
        """`flush`, outside of a loop."""
        _flush_buffers()
        self._pump()

    def _waiting(self) -> bool:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        return bool(poll.poll(0))

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        while True:
            poll.poll()
            self._pump()

    def _pump(self) -> None:
        with self._lock:
            while True:
                try:
                    data = os.read(self._read_end, PIECE_BYTES)
                except BlockingIOError:
                    return
                self._link.send(Output(self.running, data))


def _flush_buffers() -> None:
    """Python's, and those that C code writes to."""
    sys.stdout.flush()
    sys.stderr.flush()
    libc().fflush(None)


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
