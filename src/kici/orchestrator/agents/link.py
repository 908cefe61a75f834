"""The way out to one agent: one sender, in the order of urgency, acknowledgements of many frames in one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from kici.wire.agent import (
    MAX_PACK_BYTES,
    Ack,
    Cancel,
    Dispatch,
    HeartbeatAck,
    LogWindow,
    OrchestratorFrame,
    orchestrator_frames,
    pack,
)
from kici.wire.close_codes import CloseCode

SEND_S = 15.0
"""An agent that does not take a frame for so long is not listening."""

ACKNOWLEDGED = Counter(
    "kici_agent_acknowledgements_total", "Messages of agents that were acknowledged after their commit"
)

MAX_ACKS = 500
"""In one frame."""


class Closing(Exception):
    """The socket is to be closed with this code."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class SocketLink:
    """`may_acknowledge` is asked at the moment of sending; `on_acknowledged` is told of every acknowledgement sent."""

    def __init__(
        self,
        send_bytes: Callable[[bytes], Awaitable[None]],
        *,
        may_acknowledge: Callable[[], bool],
        on_acknowledged: Callable[[], None],
    ) -> None:
        self._send_bytes = send_bytes
        self._may_acknowledge = may_acknowledge
        self._on_acknowledged = on_acknowledged
        self._heartbeat: int | None = None
        self._acked: list[int] = []
        self._refused: list[tuple[int, str]] = []
        self._orders: deque[bytes] = deque()
        self._closing: Closing | None = None
        self._woken = asyncio.Event()

    def send(self, body: Dispatch | Cancel | LogWindow) -> None:
        self.send_encoded(orchestrator_frames.encode(OrchestratorFrame(body)))

    def send_encoded(self, frame: bytes) -> None:
        self._orders.append(frame)
        self._woken.set()

    def close(self, code: CloseCode, reason: str) -> None:
        self._closing = self._closing or Closing(code, reason)
        self._woken.set()

    def acknowledge(self, seq: int, refused: str = "") -> None:
        """To be called after the commit only."""
        if seq > 0:
            if refused:
                self._refused.append((seq, refused))
            else:
                self._acked.append(seq)
            self._woken.set()

    def acknowledge_heartbeat(self, number: int) -> None:
        self._heartbeat = number
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled. Raises `Closing` when somebody has asked for it."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._closing is not None:
                raise self._closing
            while frames := (answers := self._answers()) + self._orders_beside(answers):
                async with asyncio.timeout(SEND_S):
                    await self._send_bytes(pack(frames))
                if answers:
                    self._on_acknowledged()

    def _answers(self) -> list[bytes]:
        frames: list[bytes] = []
        while (answer := self._next_answer()) is not None:
            frames.append(orchestrator_frames.encode(OrchestratorFrame(answer)))
        return frames

    def _orders_beside(self, answers: list[bytes]) -> list[bytes]:
        """What fits into the same message. What is urgent stands before them."""
        frames: list[bytes] = []
        size = sum(map(len, answers))
        while self._orders and (not size or size + len(self._orders[0]) <= MAX_PACK_BYTES):
            frames.append(self._orders.popleft())
            size += len(frames[-1])
        return frames

    def _next_answer(self) -> HeartbeatAck | Ack | None:
        """Acknowledgements wait while the lease does not hold: the agent sends again what they were for."""
        if self._heartbeat is not None:
            number, self._heartbeat = self._heartbeat, None
            if self._may_acknowledge():
                return HeartbeatAck(number)
        if (self._acked or self._refused) and self._may_acknowledge():
            ack = Ack(tuple(self._acked[:MAX_ACKS]), tuple(self._refused[:MAX_ACKS]))
            del self._acked[:MAX_ACKS], self._refused[:MAX_ACKS]
            ACKNOWLEDGED.inc(len(ack.seqs))
            return ack
        return None
