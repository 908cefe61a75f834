"""A TCP proxy whose cable can be pulled: bytes stop in both directions and no connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class Cable:
    """`async with Cable(port) as cable`: connect to `cable.port` instead of `port`."""

    def __init__(self, target: int) -> None:
        self.target = target
        """Of connections that are made from now on: another coordinator, after the one behind it has died."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def pull(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        writers = [writer]
        try:
            await self._whole.wait()
            with contextlib.suppress(ConnectionError):
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
                writers.append(there_writer)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, there_writer))
                    group.create_task(self._pump(there_reader, writer))
        except asyncio.CancelledError:
            if not self._closed:  # asyncio's streams report a handler that was cancelled as an error
                raise
        finally:
            self._tasks.discard(task)
            for one in writers:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            writer.close()
