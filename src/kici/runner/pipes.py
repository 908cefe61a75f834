"""Pipes in the event loop: bytes go from one to another one, or in and out, without a thread and mostly uncopied."""

from __future__ import annotations

import asyncio
import math
import os
import select
from collections.abc import Callable
from contextlib import suppress

PIECE_BYTES = 262_144
PIPE_BYTES = 1_048_576
"""What a pipe holds where the system allows it; by itself it would be 64 KiB, and wake its ends as often."""


def make() -> tuple[int, int]:
    """Its ends, to read and to write."""
    source, target = os.pipe()
    widen(target)
    return source, target


def widen(pipe: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
        with suppress(PermissionError):  # the user has enough of them
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


async def read(pipe: int, count: int = PIECE_BYTES, *, unless: asyncio.Future[bool] | None = None) -> bytes:
    """Up to `count` bytes. None at its end, which is also when it is empty and `unless` is done; or that is false."""
    os.set_blocking(pipe, False)
    while True:
        if unless is not None and unless.done() and not unless.result():
            return b""
        try:
            return os.read(pipe, count)
        except BlockingIOError:
            if unless is not None and unless.done():
                return b""
            await readable(pipe, unless)


async def write(pipe: int, data: bytes) -> None:
    """All of it. Raises `BrokenPipeError`."""
    os.set_blocking(pipe, False)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(pipe, view) :]
        except BlockingIOError:
            await writable(pipe)


class TooMuch(Exception):
    """More has flowed than is allowed."""


class Flow:
    """From one pipe into another one."""

    def __init__(self, allowed: Callable[[], float] = lambda: math.inf) -> None:
        """`allowed`: how many bytes, asked after each piece."""
        self._allowed = allowed
        self.bytes = 0
        """So far."""

    async def run(self, source: int, target: int, head: bytes = b"") -> None:
        """`head`, then all that comes. Raises `BrokenPipeError` when nobody reads the target any more; `TooMuch`."""
        await write(target, head)
        self.bytes += len(head)
        for pipe in (source, target):
            os.set_blocking(pipe, False)
        while True:
            try:
                moved = await _moved(source, target)
            except BlockingIOError:
                await (writable(target) if _is_readable(source) else readable(source))
                continue
            if not moved:
                return
            self.bytes += moved
            if self.bytes > self._allowed():
                raise TooMuch
            await asyncio.sleep(0)


async def _moved(source: int, target: int) -> int:
    """How many bytes; 0 at the end. Raises `BlockingIOError`."""
    if hasattr(os, "splice"):  # Linux: nothing is copied
        return os.splice(source, target, PIPE_BYTES)
    data = os.read(source, PIECE_BYTES)
    await write(target, data)
    return len(data)


def _is_readable(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


async def readable(file: int, unless: asyncio.Future[bool] | None = None) -> None:
    """Or until `unless` is done."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)

    def done(future: asyncio.Future[bool]) -> None:
        ready.set()

    if unless is not None:
        unless.add_done_callback(done)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
        if unless is not None:
            unless.remove_done_callback(done)


async def writable(file: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(file)
