"""A TCP proxy that cuts connections at chosen points, as a network does: both ends see a reset."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Cutter:
    """`async with Cutter(port) as cutter`: connect to `cutter.url` instead of the port's. Each cut happens once."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up: int | None = None
        """Bytes that still go to the server before the connection that carries them is cut; None = no cut."""
        self.down: int | None = None
        """The same from the server."""
        self.unanswered = b""
        """The answer to the next request whose bytes have this in them is cut off whole."""
        self.cuts = 0
        self.seen = bytearray()
        """What clients have sent; headers are in it."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """What is open is cut, and nobody gets through until there is another target."""
        self.target = 1
        self.cuts += len(self._tasks)
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
                writers.append(there_writer)
                await _first(self._up(reader, there_writer), self._down(there_reader, writer))
        finally:
            for one in writers:
                one.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.seen += data[:4096]
            if self.up is not None:
                self.up -= len(data)
                if self.up <= 0:
                    self.up, self.cuts = None, self.cuts + 1
                    return
            writer.write(data)
            await writer.drain()
            if self.unanswered and self.unanswered in data:
                self.unanswered, self.down = b"", 0

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.down is not None:
                self.down -= len(data)
                if self.down <= 0:
                    self.down, self.cuts = None, self.cuts + 1
                    return
            writer.write(data)
            await writer.drain()


async def _first(*pumps: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
