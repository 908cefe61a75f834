"""A TCP proxy that cuts connections at chosen points, as a network does: both ends see a reset."""

from __future__ import annotations

import asyncio

from tests.support.relay import Relay


class Cutter(Relay):
    """Each cut happens once."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.up: int | None = None
        """Bytes that still go to the server before the connection that carries them is cut; None = no cut."""
        self.down: int | None = None
        """The same from the server."""
        self.unanswered = b""
        """The answer to the next request whose bytes have this in them is cut off whole."""
        self.cuts = 0
        self.seen = bytearray()
        """What clients have sent; headers are in it."""

    def close(self) -> None:
        """What is open is cut, and nobody gets through until there is another target."""
        self.target = 1
        self.cuts += self.cut()

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
