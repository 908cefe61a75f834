from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from kici.orchestrator.agents.link import Closing, SocketLink
from kici.wire.agent import MAX_PACK_BYTES, Ack, Cancel, FromOrchestrator, HeartbeatAck, unpack_orchestrator
from kici.wire.close_codes import CloseCode


class Wire:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.lease = True
        self.acknowledged = 0
        self.open = asyncio.Event()
        self.open.set()
        self._sent = asyncio.Event()
        self.link = SocketLink(self._send, may_acknowledge=lambda: self.lease, on_acknowledged=self._on_acknowledged)

    def bodies(self) -> list[list[FromOrchestrator]]:
        return [[frame.body for frame in unpack_orchestrator(data)] for data in self.messages]

    async def until(self, messages: int) -> None:
        while len(self.messages) < messages:
            self._sent.clear()
            await self._sent.wait()

    async def _send(self, data: bytes) -> None:
        await self.open.wait()
        self.messages.append(data)
        self._sent.set()

    def _on_acknowledged(self) -> None:
        self.acknowledged += 1


@asynccontextmanager
async def running(wire: Wire) -> AsyncIterator[None]:
    task = asyncio.create_task(wire.link.run())
    try:
        async with asyncio.timeout(5):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_is_to_be_sent_at_the_same_moment_goes_in_one_message_the_urgent_first() -> None:
    wire = Wire()
    for number in (1, 2):
        wire.link.send(Cancel(f"job-{number}", 1, "enough"))
        wire.link.acknowledge(number)
    wire.link.acknowledge(3, "too late")
    wire.link.acknowledge_heartbeat(9)
    async with running(wire):
        await wire.until(1)
    assert wire.bodies() == [
        [HeartbeatAck(9), Ack((1, 2), ((3, "too late"),)), Cancel("job-1", 1, "enough"), Cancel("job-2", 1, "enough")]
    ]
    assert wire.acknowledged == 1


async def test_an_answer_overtakes_orders_that_do_not_fit_and_a_giant_goes_alone() -> None:
    wire = Wire()
    giant = "x" * MAX_PACK_BYTES
    wire.link.send(Cancel("small", 1, "a"))
    for name in ("one", "two"):
        wire.link.send(Cancel(name, 1, giant))
    wire.open.clear()
    async with running(wire):
        await asyncio.sleep(0)
        wire.link.acknowledge(5)
        wire.open.set()
        await wire.until(4)
    assert wire.bodies() == [
        [Cancel("small", 1, "a")],
        [Ack((5,))],
        [Cancel("one", 1, giant)],
        [Cancel("two", 1, giant)],
    ]


async def test_without_the_lease_orders_go_and_acknowledgements_wait() -> None:
    wire = Wire()
    wire.lease = False
    async with running(wire):
        wire.link.acknowledge(1)
        wire.link.send(Cancel("job", 1, "a"))
        await wire.until(1)
        assert wire.bodies() == [[Cancel("job", 1, "a")]]
        assert wire.acknowledged == 0
        wire.lease = True
        wire.link.acknowledge(2)
        await wire.until(2)
    assert wire.bodies()[1] == [Ack((1, 2))]


async def test_closing_comes_before_what_waits() -> None:
    wire = Wire()
    wire.link.acknowledge(1)
    wire.link.close(CloseCode.SUPERSEDED, "a newer one")
    with pytest.raises(Closing, match="a newer one"):
        await wire.link.run()
    assert wire.messages == []
