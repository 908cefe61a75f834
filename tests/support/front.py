"""What may stand between an agent and its orchestrator: a proxy, or a front that passes not everything on.

TLS alone is a `Relay` that has a certificate.
"""

from __future__ import annotations

import asyncio

from tests.support.relay import Relay


class WithoutUpgrade(Relay):
    """As a front that was not told of WebSockets: it leaves the header out."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"upgrade:", b"connection:"))]
        lines.insert(1, b"Connection: close")
        await self._lead_on(reader, writer, self.target, first=b"\r\n".join(lines))


class WithoutPath(Relay):
    """As an orchestrator that does not have this path yet."""

    def __init__(self, target: int, path: str) -> None:
        super().__init__(target)
        self._path = path.encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ")[1].startswith(self._path):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
        else:
            await self._lead_on(reader, writer, self.target, first=head)


class Proxy(Relay):
    """Leads a CONNECT on to where it says, unless it wants a login that was not given."""

    def __init__(self, login: str = "") -> None:
        super().__init__(target=1)
        self.login = login
        self.asked: list[str] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            await self._lead_on(reader, writer, int(target.rpartition(":")[2]))
        else:  # the whole address stands in the request: an orchestrator takes it so
            port = int(target.split("/")[2].rpartition(":")[2])
            await self._lead_on(reader, writer, port, first=head.encode())
