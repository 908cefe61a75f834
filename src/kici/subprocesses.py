"""Programs that end with the block they are started for, whenever it is cancelled.

Two things of asyncio's are not done here. A `create_subprocess_exec` that is cancelled half-way may wait for ever, or
leave its process: a start is always awaited. And `Process.wait` of Python 3.11 waits for the pipes too, which stay open
as long as somebody has inherited them, or nobody reads what is in them: the end of the process is what is waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_BUFFER_BYTES = 65_536
_GROUP_S = 5.0
"""Who holds a pipe open for longer has left the group: it is not waited for."""


@asynccontextmanager
async def started(*argv: str, **options: Any) -> AsyncIterator[Process]:
    """`options` as of `create_subprocess_exec`. After the block the process is killed, with its group if it leads a
    session, and reaped. Raises the `OSError` of a program that cannot be started.
    """
    starting = asyncio.create_task(_start(argv, options))
    try:
        process, _, _ = await to_its_end(starting)
        yield process
    finally:
        if not starting.cancelled() and starting.exception() is None:
            await to_its_end(_end(*starting.result(), options.get("start_new_session", False)))


def is_own(pid: int) -> bool:
    """Whether it was started here, and its block is not over: then it is no orphan of a job's that came to us."""
    return pid in _own


async def to_its_end(work: Awaitable[T]) -> T:
    """Await what is short and must not be left half done. A cancellation, however often it comes, is passed on
    afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Protocol(SubprocessStreamProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_BUFFER_BYTES, loop=loop)
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


_own: set[int] = set()

_Started = tuple[Process, asyncio.SubprocessTransport, _Protocol]


async def _start(argv: tuple[str, ...], options: dict[str, Any]) -> _Started:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(lambda: _Protocol(loop), *argv, **options)
    process = Process(transport, protocol, loop)
    _own.add(process.pid)
    return process, transport, protocol


async def _end(process: Process, transport: asyncio.SubprocessTransport, protocol: _Protocol, group: bool) -> None:
    with suppress(ProcessLookupError):
        if group:  # whoever is left in it keeps its number, also when the first one has ended
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()
    await protocol.ended.wait()
    if group:  # its other processes end a moment later, and their ends of the pipes with them
        with suppress(TimeoutError):
            async with asyncio.timeout(_GROUP_S):
                for stream in (process.stdout, process.stderr):
                    while stream is not None and await stream.read(_BUFFER_BYTES):
                        pass
    if process.stdin is not None:
        pipe = process.stdin.transport
        # One that closes by itself, and has nothing to write any more, must not be told to: asyncio falls over it.
        if not pipe.is_closing() or pipe.get_write_buffer_size():
            pipe.abort()
    transport.close()
    _own.discard(process.pid)
