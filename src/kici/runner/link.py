"""Either end of the socket between a runner and its host.

A large message, of output mostly, is copied as little as can be. Descriptors go from the host to the runner only: what
a runner sends along is dropped by the kernel.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import threading
from array import array
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice, takewhile
from typing import Generic, TypeVar

from kici.runner import pipes
from kici.wire.codec import Codec, UnreadableMessage
from kici.wire.runner import MAX_BYTES, FromHost, FromRunner, from_host, from_runner

_READ_BYTES = 65_536
_SEND_AT_ONCE = 16
"""Buffers."""
NONE = -1
"""No descriptor."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(array("i").itemsize * 16)
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Out = TypeVar("Out")
In = TypeVar("In")


class End(Generic[Out, In]):
    """Messages out, from any thread, each whole and in the order of the calls; messages in, for one reader.

    Another end that reads slowly slows whoever sends: `post` waits, `send` blocks, `push` does not.
    """

    def __init__(
        self, sock: socket.socket, outgoing: Codec[Out], incoming: Codec[In], *, max_out: int, max_in: int
    ) -> None:
        """`max_out` and `max_in`: bytes of one message."""
        sock.setblocking(False)
        self._socket = sock
        self._outgoing = outgoing
        self._incoming = incoming
        self._max_out = max_out
        self._max_in = max_in
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._received = bytearray()
        """What no message was made of yet."""
        self._body = bytearray()
        """Of a message whose beginning has come; the rest of it goes to where `_missing` is."""
        self._missing = memoryview(b"")
        self._lock = threading.Lock()
        self._unsent: deque[tuple[memoryview, int]] = deque()
        """With the descriptor that goes along, or `NONE`."""
        self._emptied: asyncio.Event | None = None

    def send(self, message: Out) -> None:
        """Returns when the message is with the other end. Raises `OSError` if that is gone."""
        self._add(message)
        while not self._flush():
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            poll.poll(1000)

    async def post(self, message: Out, descriptor: int = NONE) -> None:
        """`send`, without blocking the loop; with a descriptor, which is closed here at the latest with this end."""
        self._add(message, descriptor)
        while not self._flush():
            await self._watched().wait()

    def push(self, message: Out) -> None:
        """Sent as soon as that is possible, after what has not been sent yet; lost if either end is gone."""
        if self._socket.fileno() >= 0:
            self._add(message)
            self._watched()

    def receive(self) -> In | None:
        """The next message, outside of a loop; None if the other end has closed the socket.

        Raises `UnreadableMessage`.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while (message := self._next()) is None:
            poll.poll()
            if not self._came(self._take()):
                return None
        return message

    async def read(self) -> In | None:
        """`receive` in a loop, whose other tasks get their turns, however much there is to read."""
        while (message := self._next()) is None:
            if not self._missing:
                await asyncio.sleep(0)
            try:
                if not self._came(self._take()):
                    return None
            except BlockingIOError:
                await pipes.readable(self._socket.fileno())
            except ConnectionError:
                return None
        return message

    async def messages(self) -> AsyncIterator[In]:
        """Until the other end closes the socket. Raises `UnreadableMessage`."""
        while (message := await self.read()) is not None:
            yield message

    def wait_for_hangup(self) -> None:
        """Blocks until the other end has closed the socket, by itself or by dying."""
        poll = select.poll()
        poll.register(self._socket, 0)
        while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            pass

    def close(self) -> None:
        """In the loop. Nobody reads or posts any more. Safe to call again."""
        if self._emptied is not None:
            self._unwatch(self._emptied)
        self._socket.close()
        with self._lock:
            for _, descriptor in self._unsent:
                if descriptor != NONE:
                    os.close(descriptor)
            self._unsent.clear()

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> In | None:
        """A message that is complete."""
        if self._missing:
            return None
        if self._body:
            body, self._body = self._body, bytearray()
            return self._incoming.decode(body)
        size = int.from_bytes(self._received[:4], "big")
        if size > self._max_in:
            raise UnreadableMessage(f"a message of {size:,} bytes is over the limit of {self._max_in:,}")
        here = len(self._received) - 4
        if here < 0:
            return None
        if here >= size:
            body = self._received[4 : 4 + size]
            del self._received[: 4 + size]
            return self._incoming.decode(body)
        if size > _READ_BYTES:
            self._body = bytearray(size)
            self._body[:here] = memoryview(self._received)[4:]
            self._received = bytearray()
            self._missing = memoryview(self._body)[here:]
        return None

    def _take(self) -> int:
        """How many bytes have come into `_space`; 0: no more will. Raises `BlockingIOError`."""
        return self._socket.recv_into(self._space())

    def _space(self) -> memoryview:
        return self._missing or self._buffer

    def _came(self, count: int) -> int:
        if self._missing:
            self._missing = self._missing[count:]
        else:
            self._received += self._buffer[:count]
        return count

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, message: Out, descriptor: int = NONE) -> None:
        body = self._outgoing.encode(message)
        if len(body) > self._max_out:
            raise ValueError(f"a message of {len(body):,} bytes is over the limit of {self._max_out:,}")
        with self._lock:
            self._unsent += ((memoryview(len(body).to_bytes(4, "big")), descriptor), (memoryview(body), NONE))

    def _flush(self) -> bool:
        with self._lock:
            try:
                while self._unsent:
                    self._sent(self._give())
            except BlockingIOError:
                return False
        return True

    def _give(self) -> int:
        """How many bytes of what is unsent have gone. Raises `BlockingIOError`."""
        first, descriptor = self._unsent[0]
        if descriptor == NONE:
            plain = takewhile(lambda one: one[1] == NONE, islice(self._unsent, _SEND_AT_ONCE))
            return self._socket.sendmsg([view for view, _ in plain])
        count = self._socket.sendmsg([first], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))])
        os.close(descriptor)
        self._unsent[0] = first, NONE
        return count

    def _sent(self, count: int) -> None:
        while count:
            first, _ = self._unsent.popleft()
            if count < len(first):
                self._unsent.appendleft((first[count:], NONE))
            count = max(count - len(first), 0)

    def _watched(self) -> asyncio.Event:
        """Set when all has been sent, or cannot be."""
        if self._emptied is None:
            self._emptied = asyncio.Event()
            asyncio.get_running_loop().add_writer(self._socket, self._go_on, self._emptied)
        return self._emptied

    def _go_on(self, emptied: asyncio.Event) -> None:
        try:
            if not self._flush():
                return
        except OSError:  # who posts finds it too
            pass
        self._unwatch(emptied)

    def _unwatch(self, emptied: asyncio.Event) -> None:
        asyncio.get_running_loop().remove_writer(self._socket)
        self._emptied = None
        emptied.set()


class Link(End[FromRunner, FromHost]):
    """The runner's."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, from_runner, from_host, max_out=MAX_BYTES, max_in=sys.maxsize)
        self._descriptors: deque[int] = deque()

    def descriptor(self) -> int:
        """What came with the `Pipe` that was read; whoever takes it closes it. To be called once for each."""
        return self._descriptors.popleft()

    def _take(self) -> int:
        count, ancillary, _, _ = self._socket.recvmsg_into([self._space()], _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array("i", data))
        return count


class HostLink(End[FromHost, FromRunner]):
    """The host's."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, from_host, from_runner, max_out=sys.maxsize, max_in=MAX_BYTES)
