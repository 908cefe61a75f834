"""A TCP proxy on loopback: what comes goes on to a port, and back. What else happens on the way is up to subclasses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port
    return port


class Relay:
    """`async with Relay(port) as relay`: connect to `relay.port` instead of `port`."""

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what those who connect have to speak."""
        self.target = target
        """Of connections that are made from now on: another may stand in for the one behind it."""
        self.port = 0
        """Of 127.0.0.1, once it is entered."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """All connections, with a reset at both ends. How many there were."""
        for task in self._connections:
            task.cancel()
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            # Cancelled it is by `cut` alone; of a handler that ends so, asyncio's streams tell as of an error.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; it is cut when this returns."""
        await self._lead_on(reader, writer, self.target)

    async def _lead_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, *, first: bytes = b""
    ) -> None:
        """`first`: what was taken from the reader already, as it is to go on."""
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            there_writer.write(first)
            await self._both(self._up(reader, there_writer), self._down(there_reader, writer))
        finally:
            there_writer.transport.abort()

    async def _both(self, *ways: Coroutine[Any, Any, None]) -> None:
        """Until one of them ends."""
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From who connected."""
        await self._pump(reader, writer)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pump(reader, writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
