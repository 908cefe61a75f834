"""What may stand between an agent and its orchestrator: TLS, a proxy, a front that passes no `Upgrade` on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Its port, of 127.0.0.1."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def forwarding(port: int) -> Serve:
    """All that comes goes to this port, and back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _both_ways(reader, writer, port)

    return serve


def without_upgrade(port: int) -> Serve:
    """As a front that was not told of WebSockets: it leaves the header out."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"upgrade:", b"connection:"))]
        lines.insert(1, b"Connection: close")
        await _both_ways(reader, writer, port, first=b"\r\n".join(lines))

    return serve


def without_path(path: str, port: int) -> Serve:
    """As an orchestrator that does not have this path yet."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ")[1].startswith(path.encode()):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
        else:
            await _both_ways(reader, writer, port, first=head)

    return serve


class Proxy:
    """Leads a CONNECT on, unless it wants a login that was not given."""

    def __init__(self, login: str = "") -> None:
        self.login = login
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.split("\r\n")[0])
        if self.login and f"Basic {self.login}" not in head:
            writer.write(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=kici\r\n"
                b"Connection: close\r\nContent-Length: 0\r\n\r\n"
            )
            await writer.drain()
            return
        target = head.split(" ")[1]
        if head.startswith("CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _both_ways(reader, writer, int(target.rpartition(":")[2]))
        else:  # the whole address stands in the request: an orchestrator takes it so
            port = int(target.split("/")[2].rpartition(":")[2])
            await _both_ways(reader, writer, port, first=head.encode())


async def _both_ways(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, *, first: bytes = b""
) -> None:
    there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
    there_writer.write(first)
    ways = [
        asyncio.create_task(_one_way(reader, there_writer)),
        asyncio.create_task(_one_way(there_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        there_writer.transport.abort()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
