"""The agent's one socket to its orchestrator: dial, hello, frames both ways, dial again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from kici.agent import proxies
from kici.agent.backoff import delays
from kici.agent.errors import TurnedAway
from kici.agent.outbox import Outbox
from kici.agent.silence import Silence
from kici.wire.agent import (
    MAX_PACK_BYTES,
    Ack,
    AgentFrame,
    Cancel,
    Dispatch,
    FromAgent,
    FromOrchestrator,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    LogWindow,
    Welcome,
    agent_frames,
    orchestrator_frames,
    pack,
    unpack_orchestrator,
)
from kici.wire.close_codes import CloseCode
from kici.wire.codec import MAX_MESSAGE_BYTES, UnreadableMessage
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN

log = structlog.get_logger(__name__)

OPEN_S = 10.0
WELCOME_S = 10.0
PING_S = 5.0
"""A peer that does not answer a ping in 15 s is gone, whatever its operating system thinks."""
UNSENT_BYTES = 131_072
"""In the kernel: a heartbeat stands behind no more than this."""
FOR_GOOD = (CloseCode.AUTH_FAILED, CloseCode.REFUSED, CloseCode.PROTOCOL_VERSION)


class Receiver(Protocol):
    """Who has the jobs."""

    def hello(self) -> Hello: ...

    def heartbeat(self, number: int) -> Heartbeat: ...

    def welcomed(self, welcome: Welcome) -> None: ...

    def dispatched(self, dispatch: Dispatch) -> None: ...

    def cancelled(self, cancel: Cancel) -> None: ...


class _Lost(Exception):
    """This socket is of no more use; the message says why."""


def dial(url: str) -> connect:
    """A socket to the orchestrator, for `async with`. Raises `SettingsInvalid` for a proxy that cannot be used."""
    return connect(
        url,
        compression=None,
        max_size=MAX_MESSAGE_BYTES,
        open_timeout=OPEN_S,
        close_timeout=2.0,
        ping_interval=PING_S,
        ping_timeout=3 * PING_S,
        proxy=proxies.on_the_way_to(url),
    )


class Connection:
    """Keeps one socket open, whatever happens to it."""

    def __init__(
        self,
        url: str,
        receiver: Receiver,
        outbox: Outbox,
        silence: Silence,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._receiver = receiver
        self._outbox = outbox
        self._silence = silence
        self._clock = clock
        self._on_connected = on_connected
        self._beat_now = asyncio.Event()
        self._socket: ClientConnection | None = None

    @property
    def connected(self) -> bool:
        """Welcomed, and not lost since."""
        return self._socket is not None

    def beat(self) -> None:
        """Send a heartbeat at once: something that it tells has changed."""
        self._beat_now.set()

    async def run(self) -> None:
        """Until cancelled. Raises `TurnedAway` when the orchestrator will not have this agent."""
        pauses = delays()
        while True:
            try:
                welcomed = await self._one()
            except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed, UnreadableMessage, _Lost) as error:
                welcomed = False
                log.warning(
                    "the orchestrator does not answer", url=self._url, reason=str(error) or type(error).__name__
                )
            except InvalidURI as error:
                raise TurnedAway(f"{self._url} is no WebSocket address: {error}") from error
            if welcomed:
                pauses = delays()
            await asyncio.sleep(next(pauses))

    async def leave(self, reason: str) -> None:
        """Say goodbye if there is somebody to hear it."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._send(self._socket, Goodbye(reason))
                await self._socket.close(CloseCode.NORMAL, reason[:100])

    async def _one(self) -> bool:
        """One socket, from dialling to its end. True if it was welcomed."""
        async with dial(self._url) as ws:
            _limit_unsent(ws)
            try:
                welcome = await self._shake_hands(ws)
            except ConnectionClosed as closed:
                raise self._verdict([closed]) from closed
            log.info("connected", url=self._url, session=welcome.session_id, orchestrator=welcome.version)
            self._socket = ws
            try:
                self._receiver.welcomed(welcome)
                self._on_connected()
                await self._serve(ws, welcome)
            finally:
                self._socket = None
        return True

    async def _shake_hands(self, ws: ClientConnection) -> Welcome:
        await self._send(ws, self._receiver.hello())
        async with asyncio.timeout(WELCOME_S):
            body = orchestrator_frames.decode(_binary(await ws.recv())).body
        if not isinstance(body, Welcome):
            raise _Lost(f"the answer to our hello was {type(body).__name__}")
        if not PROTOCOL_MIN <= body.protocol <= PROTOCOL_MAX:
            raise TurnedAway(
                f"the orchestrator ({body.version}) wants protocol {body.protocol}, which this agent lacks"
            )
        return body

    async def _serve(self, ws: ClientConnection, welcome: Welcome) -> None:
        self._outbox.rewind()
        # No task group: until Python 3.13 a failing one swallows a cancellation that comes meanwhile.
        tasks = [asyncio.create_task(work) for work in (self._read(ws), self._write(ws), self._beat(ws, welcome))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        verdict = self._verdict([end for end in ends if isinstance(end, Exception)])
        if isinstance(verdict, TurnedAway):
            raise verdict
        log.warning("connection lost", reason=str(verdict))
        await ws.close(CloseCode.HEARTBEAT_TIMEOUT)

    async def _read(self, ws: ClientConnection) -> None:
        while True:
            data = _binary(await ws.recv())
            try:
                frames = unpack_orchestrator(data)
            except UnreadableMessage as error:
                log.warning("left a message aside", reason=str(error))
                continue
            for frame in frames:
                self._hear(frame.body)

    def _hear(self, body: FromOrchestrator) -> None:
        match body:
            case Ack():
                self._outbox.settle(body)
            case HeartbeatAck():
                self._silence.acknowledged(body.number)
            case Dispatch():
                self._receiver.dispatched(body)
            case Cancel():
                self._receiver.cancelled(body)
            case LogWindow():
                self._outbox.set_window(body.bytes)
            case Welcome():
                log.warning("left a second welcome aside")

    async def _write(self, ws: ClientConnection) -> None:
        while True:
            first = await self._outbox.next()
            frames = [agent_frames.encode(AgentFrame(first.seq, first.body))]
            size = len(frames[0])
            while size < MAX_PACK_BYTES and (frame := self._outbox.take_status()) is not None:
                frames.append(agent_frames.encode(AgentFrame(frame.seq, frame.body)))
                size += len(frames[-1])
            await ws.send(pack(frames))

    async def _beat(self, ws: ClientConnection, welcome: Welcome) -> None:
        """The first heartbeat goes at once: what the orchestrator knows of us counts from the last one it answers."""
        opened_at = self._clock()
        while True:
            self._beat_now.clear()
            await self._send(ws, self._receiver.heartbeat(self._silence.sending()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(welcome.heartbeat_s):
                    await self._beat_now.wait()
            silent_for = self._clock() - max(opened_at, self._silence.known_at)
            if silent_for > 2 * welcome.silent_s:
                raise _Lost(f"no heartbeat was answered for {silent_for:.0f} s")

    async def _send(self, ws: ClientConnection, body: FromAgent) -> None:
        await ws.send(agent_frames.encode(AgentFrame(0, body)))

    def _verdict(self, found: Sequence[Exception]) -> Exception:
        """What the end of a socket means for us. Raises what was no end of a socket."""
        unexpected = [leaf for leaf in found if not isinstance(leaf, ConnectionClosed | _Lost)]
        if unexpected:
            raise unexpected[0]
        for leaf in found:
            if isinstance(leaf, ConnectionClosed) and leaf.rcvd is not None and leaf.rcvd.code in FOR_GOOD:
                code = CloseCode(leaf.rcvd.code)
                return TurnedAway(f"{leaf.rcvd.reason or code.name} (close code {code})")
        return _Lost(str(found[0]))


def _binary(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _limit_unsent(ws: ClientConnection) -> None:
    raw = ws.transport.get_extra_info("socket")
    if raw is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
