"""The host's end of the socket to a runner: messages both ways, and questions whether it is there."""

from __future__ import annotations

import asyncio
import socket

from kici.runner.link import NONE, HostLink
from kici.wire.codec import UnreadableMessage
from kici.wire.runner import FromHost, FromRunner, Ping, Pong


class RunnerLink:
    """`close` at the end, always."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over."""
        self._end = HostLink(sock)
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Task[FromRunner | None] | None = None
        """The next message is waited for already: there is only ever one reader."""
        self._asked_at: list[float] = []
        """Questions without an answer, by the loop's clock."""
        self.listens = False
        """Somebody waits for what the runner says."""
        self.received = 0
        """Messages, so far."""

    def write(self, message: FromHost) -> None:
        """It goes when there is room."""
        self._end.push(message)

    async def send(self, message: FromHost, descriptor: int = NONE) -> None:
        """With a descriptor, which is ours from now on."""
        await self._end.post(message, descriptor)

    async def receive(self) -> FromRunner | None:
        """None if the runner has closed the socket, also in the middle of a message. Raises `UnreadableMessage`."""
        self.listens = True
        try:
            if self._next is None:
                return await self._end.read()
            waited_for, self._next = self._next, None
            return await waited_for
        finally:
            self.listens = False
            self.received += 1

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        self._end.close()

    # ── whether it is there ──────────────────────────────────────────────────────────────────────────────────────────

    def ask(self) -> None:
        """The runner answers with `Pong`: before its job at once, then when its event loop has time."""
        self._asked_at.append(self._loop.time())
        self.write(Ping())

    def answered(self) -> bool:
        """A `Pong` has come. False if nobody has asked."""
        if not self._asked_at:
            return False
        self._asked_at.pop(0)
        return True

    def waits_longer_than(self, seconds: float) -> bool:
        """For an answer."""
        return any(self._loop.time() - at > seconds for at in self._asked_at)

    async def answers(self, ended: asyncio.Task[int], limit_s: float) -> bool:
        """Ask a runner that stands ready, and wait for so long. True also if it has `ended`.

        May be cancelled at any time: the answer is for whoever receives next.
        """
        self.ask()
        if self._next is None:
            self._next = asyncio.create_task(self._end.read())
        await asyncio.wait([self._next, ended], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not self._next.done():
            return ended.done()
        waited_for, self._next = self._next, None
        try:
            said = waited_for.result()
        except UnreadableMessage:
            return False
        if said is None:  # it is about to end
            await asyncio.wait([ended], timeout=1)
            return ended.done()
        return isinstance(said, Pong) and self.answered()
