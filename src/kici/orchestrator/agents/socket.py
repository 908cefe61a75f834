"""`/ws`: where agents dial in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.handlers import WebsocketRouteHandler

from kici.orchestrator.agents.contract import Settings
from kici.orchestrator.agents.conversation import Conversation, Parts
from kici.orchestrator.agents.hello import Door, TurnedAway
from kici.orchestrator.agents.link import SEND_S, Closing
from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.wire.agent import Hello, OrchestratorFrame, agent_frames, orchestrator_frames
from kici.wire.close_codes import CloseCode
from kici.wire.codec import UnreadableMessage

log = structlog.get_logger(__name__)

MAX_REASON = 120
"""Bytes that a close frame has room for."""


class AgentSockets:
    """All agents' sockets of this coordinator."""

    def __init__(self, door: Door, parts: Parts, settings: Settings) -> None:
        self._door = door
        self._parts = parts
        self._settings = settings
        self._open: set[asyncio.Task[None]] = set()
        self._draining = False

    async def run(self) -> None:
        """Nothing until it is cancelled; then the agents are sent away."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.drain()

    async def drain(self) -> None:
        """Close every socket with 1001; the agents go to another coordinator, or come back to the next start. Their
        jobs run on."""
        self._draining = True
        for agent in self._parts.roster.all():
            if agent.link is not None:
                agent.link.close(CloseCode.GOING_AWAY, "this coordinator is stopping")
        if self._open:
            await asyncio.wait(self._open, timeout=5)

    async def serve(self, socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with _closing(socket):
                await self._talk(socket)
        finally:
            self._open.discard(task)

    async def _talk(self, socket: WebSocket[Any, Any, Any]) -> None:
        if self._draining:
            raise Closing(CloseCode.GOING_AWAY, "this coordinator is stopping")
        hello = await self._hello(socket)
        try:
            opened = await self._door.admit(hello)
        except (Unavailable, LeaseLost) as error:
            raise Closing(CloseCode.GOING_AWAY, f"come back later: {error}") from error
        if isinstance(opened, TurnedAway):
            log.warning("agent turned away", agent=hello.agent_id, reason=opened.reason)
            raise Closing(opened.code, opened.reason)
        agent = opened.agent
        for older in self._parts.roster.add(agent):
            if older.link is not None:
                older.link.close(CloseCode.SUPERSEDED, "a newer socket of this agent took over")
        async with asyncio.timeout(SEND_S):
            await socket.send_bytes(orchestrator_frames.encode(OrchestratorFrame(opened.welcome)))

        async def receive() -> bytes:
            return await socket.receive_data(mode="binary")

        await Conversation(agent, self._parts, receive=receive, send=socket.send_bytes).serve()

    async def _hello(self, socket: WebSocket[Any, Any, Any]) -> Hello:
        try:
            async with asyncio.timeout(self._settings.hello_s):
                data = await socket.receive_data(mode="binary")
        except TimeoutError as error:
            raise Closing(CloseCode.HELLO_TIMEOUT, f"no hello in {self._settings.hello_s:g} s") from error
        body = agent_frames.decode(data).body
        if not isinstance(body, Hello):
            raise Closing(CloseCode.INVALID_MESSAGE, "the first message must be a hello")
        return body


def routes(sockets: AgentSockets) -> list[WebsocketRouteHandler]:
    @websocket("/ws")
    async def agent_socket(socket: WebSocket[Any, Any, Any]) -> None:
        await sockets.serve(socket)

    return [agent_socket]


@asynccontextmanager
async def _closing(socket: WebSocket[Any, Any, Any]) -> AsyncIterator[None]:
    """Turn whatever ends a conversation into the right close frame."""
    try:
        yield
    except asyncio.CancelledError:
        await _close(socket, Closing(CloseCode.GOING_AWAY, "this coordinator is stopping"))
        raise
    except Exception as error:  # noqa: BLE001 - every end of a conversation has its close frame; the unexpected is logged
        closing = _verdict(error)
        if closing is not None:
            await _close(socket, closing)


def _verdict(error: Exception) -> Closing | None:
    """How to close; None if the agent has closed. What nobody expected is logged here, once."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, WebSocketDisconnect):
            return None
    for leaf in leaves:
        match leaf:
            case Closing():
                return leaf
            case UnreadableMessage():
                return Closing(CloseCode.INVALID_MESSAGE, str(leaf))
            case TimeoutError():
                return Closing(CloseCode.HEARTBEAT_TIMEOUT, "the agent does not listen")
            case Unavailable() | LeaseLost():
                return Closing(CloseCode.GOING_AWAY, f"come back later: {leaf}")
    log.error("an agent's conversation failed", exc_info=error)
    return Closing(CloseCode.INTERNAL_ERROR, "internal error")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


async def _close(socket: WebSocket[Any, Any, Any], closing: Closing) -> None:
    reason = closing.reason.encode()[:MAX_REASON].decode(errors="ignore")
    try:
        async with asyncio.timeout(SEND_S):
            await socket.close(code=closing.code, reason=reason)
    except (WebSocketDisconnect, TimeoutError, RuntimeError, OSError) as error:
        log.info("a socket was gone before it could be closed", reason=str(error))
