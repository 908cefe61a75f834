"""The runner's end of the socket to its host."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import AsyncIterator

from kici.wire.runner import MAX_BYTES, FromHost, FromRunner, from_host, from_runner

_READ_BYTES = 262_144


class Link:
    """Messages out, from any thread, each whole and in the order of the calls; messages in, for one reader.

    A host that reads slowly slows whoever sends: `post` waits, `send` blocks.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received = bytearray()
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._emptied: asyncio.Event | None = None

    def send(self, message: FromRunner) -> None:
        """Returns when the message is with the host. Raises `OSError` if the host is gone."""
        self._add(message)
        while not self._flush():
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            poll.poll(1000)

    async def post(self, message: FromRunner) -> None:
        """`send`, without blocking the loop."""
        self._add(message)
        while not self._flush():
            if self._emptied is None:
                self._emptied = asyncio.Event()
                asyncio.get_running_loop().add_writer(self._socket, self._wake)
            await self._emptied.wait()

    def receive(self) -> FromHost | None:
        """The next message, outside of a loop; None if the host has closed the socket. Raises `UnreadableMessage`."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while (message := self._next()) is None:
            poll.poll()
            piece = self._socket.recv(_READ_BYTES)
            if not piece:
                return None
            self._received += piece
        return message

    async def messages(self) -> AsyncIterator[FromHost]:
        """Until the host closes the socket. Raises `UnreadableMessage`."""
        loop = asyncio.get_running_loop()
        while True:
            while (message := self._next()) is not None:
                yield message
            piece = await loop.sock_recv(self._socket, _READ_BYTES)
            if not piece:
                return
            self._received += piece

    def wait_for_hangup(self) -> None:
        """Blocks until the host has closed the socket, by itself or by dying."""
        poll = select.poll()
        poll.register(self._socket, 0)
        while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            pass

    def _next(self) -> FromHost | None:
        """A message that is complete."""
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size or len(self._received) < 4:
            return None
        body = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return from_host.decode(body)

    def _add(self, message: FromRunner) -> None:
        body = from_runner.encode(message)
        if len(body) > MAX_BYTES:
            raise ValueError(f"a message of {len(body):,} bytes is over the limit of {MAX_BYTES:,}")
        with self._lock:
            self._unsent += len(body).to_bytes(4, "big") + body

    def _flush(self) -> bool:
        with self._lock:
            try:
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                return False
        return True

    def _wake(self) -> None:
        asyncio.get_running_loop().remove_writer(self._socket)
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None
