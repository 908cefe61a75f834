"""The client's side of a WebSocket, as little of it as a load generator needs, so that what is measured is the server.

Messages go out masked with a key of zeros, which the protocol allows and which costs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Iterable
from typing import cast
from urllib.parse import urlsplit

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10


class LightSocket(asyncio.Protocol):
    """`on_message` gets every binary message; `closed` is done once the server has gone."""

    def __init__(
        self, host: str, path: str, on_message: Callable[[memoryview], None], on_read: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._host = host
        self._path = path
        self._on_message = on_message
        self._on_read = on_read
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET {self._path} HTTP/1.1\r\nhost: {self._host}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            f"sec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.opened.done():
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionError(bytes(head).decode(errors="replace")))
                return
            self.opened.set_result(None)
            self._buffer = rest
        self._read_frames()
        self._on_read()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(f"closed before it was open: {error}"))
        if not self.closed.done():
            self.closed.set_result(repr(error))

    def send(self, messages: Iterable[bytes]) -> None:
        """All in one write."""
        assert self._transport
        self._transport.write(b"".join(_frame(BINARY, message) for message in messages))

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _read_frames(self) -> None:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 2:
            opcode, length, start = buffer[at] & 15, buffer[at + 1] & 127, at + 2
            if length == 126:
                length, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                length, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if start > len(buffer) or len(buffer) - start < length:
                break
            at = start + length
            payload = bytes(buffer[start:at])
            if opcode == BINARY:
                self._on_message(memoryview(payload))
            elif opcode == PING and self._transport:
                self._transport.write(_frame(PONG, payload))
            elif opcode == CLOSE and not self.closed.done():
                self.closed.set_result(f"{int.from_bytes(payload[:2], 'big')} {payload[2:].decode(errors='replace')}")
        del buffer[:at]


async def connect(
    url: str, on_message: Callable[[memoryview], None], on_read: Callable[[], None] = lambda: None
) -> LightSocket:
    """`on_read` is called after the messages that came together."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    _, made = await asyncio.get_running_loop().create_connection(
        lambda: LightSocket(parts.netloc, parts.path, on_message, on_read), parts.hostname, parts.port
    )
    await made.opened
    return made


def _frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < 126:
        head = bytes((0x80 | opcode, 0x80 | length))
    elif length < 65_536:
        head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + length.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload
