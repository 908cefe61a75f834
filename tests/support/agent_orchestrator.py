"""The orchestrator's end of an agent's socket, played by a test: the real wire, and answers as the test wants them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import zstandard
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from kici.wire.agent import (
    Ack,
    AgentFrame,
    AttemptRef,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobStatusChanged,
    LogChunk,
    OrchestratorFrame,
    Welcome,
    agent_frames,
    orchestrator_frames,
    unpack_agent,
)

T = TypeVar("T")
DEADLINE_S = 60.0


class Orchestrator:
    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.frames: list[AgentFrame] = []
        """With a number, in the order of arrival, repeated ones too."""
        self.heartbeats: list[Heartbeat] = []
        self.others: list[Any] = []
        self.answer: Callable[[AgentFrame], Ack | None] = lambda frame: Ack((frame.seq,))
        self.answers_heartbeats = True
        self.forget: tuple[AttemptRef, ...] = ()
        self.refuse: tuple[int, str] | None = None
        """Close with this, in place of a welcome."""
        self.heartbeat_s = 0.2
        self.silent_s = 15.0
        self.deadline_s = DEADLINE_S
        self._changed = asyncio.Event()
        self._socket: ServerConnection | None = None
        self._server: Server | None = None

    @property
    def url(self) -> str:
        assert self._server
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/ws"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Orchestrator]:
        async with serve(self._serve, "127.0.0.1", 0, compression=None, close_timeout=1) as self._server:
            yield self

    async def until(self, look: Callable[[], T | bool | None], what: str) -> T:
        """Wait until `look` finds something among what has arrived."""
        try:
            async with asyncio.timeout(self.deadline_s):
                while True:
                    found = look()
                    if found:
                        return found  # type: ignore[return-value]
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {what}; got {[frame.body for frame in self.frames]}") from None

    async def body(self, kind: type[T], **fields: object) -> T:
        """The first message of this kind with these values."""
        return await self.until(lambda: next(iter(self.bodies(kind, **fields)), None), f"{kind.__name__} {fields}")

    def bodies(self, kind: type[T], **fields: object) -> list[T]:
        return [
            frame.body
            for frame in self.frames
            if isinstance(frame.body, kind) and all(getattr(frame.body, name) == fields[name] for name in fields)
        ]

    async def end(self, job_id: str) -> JobStatusChanged:
        def look() -> JobStatusChanged | None:
            ends = (end for end in self.bodies(JobStatusChanged, job_id=job_id) if end.status != "cancelling")
            return next(ends, None)

        return await self.until(look, f"the end of {job_id}")

    async def log(self, job_id: str, step: int, text: str = "") -> str:
        """Of one step without times, once it contains `text`."""

        def look() -> str | None:
            chunks = {chunk.sequence: chunk for chunk in self.bodies(LogChunk, job_id=job_id, step_index=step)}
            data = b"".join(zstandard.ZstdDecompressor().decompress(chunks[n].data) for n in sorted(chunks))
            lines = "\n".join(line.partition(" ")[2] for line in data.decode().splitlines())
            return lines if text in lines and chunks else None

        return await self.until(look, f"{text!r} in the log of {job_id}, step {step}")

    async def send(self, body: Any) -> None:
        def look() -> ServerConnection | None:
            return self._socket

        socket = await self.until(look, "a connection")
        await socket.send(orchestrator_frames.encode(OrchestratorFrame(body)))

    def cut(self) -> None:
        """Without a word."""
        assert self._socket
        socket, self._socket = self._socket, None
        socket.transport.abort()

    async def close(self, code: int, reason: str) -> None:
        assert self._socket
        await self._socket.close(code, reason)

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            hello = agent_frames.decode(_bytes(await socket.recv())).body
            assert isinstance(hello, Hello)
            self.hellos.append(hello)
            self._changed.set()
            if self.refuse:
                await socket.close(*self.refuse)
                return
            welcome = Welcome("session", 1, "test", self.heartbeat_s, self.silent_s, 120.0, self.forget)
            await socket.send(orchestrator_frames.encode(OrchestratorFrame(welcome)))
            self._socket = socket
            self._changed.set()
            while True:
                for frame in unpack_agent(_bytes(await socket.recv())):
                    await self._heard(socket, frame)
                self._changed.set()
        except ConnectionClosed:
            self._changed.set()

    async def _heard(self, socket: ServerConnection, frame: AgentFrame) -> None:
        if isinstance(frame.body, Heartbeat):
            self.heartbeats.append(frame.body)
            if self.answers_heartbeats:
                await _tell(socket, HeartbeatAck(frame.body.number))
        elif frame.seq:
            self.frames.append(frame)
            ack = self.answer(frame)
            if ack:
                await _tell(socket, ack)
        else:
            self.others.append(frame.body)


async def _tell(socket: ServerConnection, body: Any) -> None:
    """Or not, if the agent has left: what it said before is still read."""
    with contextlib.suppress(ConnectionClosed):
        await socket.send(orchestrator_frames.encode(OrchestratorFrame(body)))


def _bytes(data: str | bytes) -> bytes:
    assert isinstance(data, bytes)
    return data
