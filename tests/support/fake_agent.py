"""An agent that speaks the real wire over a real socket and runs nothing: it does what the test says."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from kici.wire.agent import (
    Ack,
    AgentFrame,
    AttemptRef,
    Dispatch,
    FromAgent,
    FromOrchestrator,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobAccepted,
    JobStatusChanged,
    StepStatusChanged,
    Welcome,
    agent_frames,
    unpack_orchestrator,
)
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN
from tests.support.services import running

DEADLINE_S = 10.0
_BEAT_S = 0.05
T = TypeVar("T")


class TurnedAway(Exception):
    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class FakeAgent:
    """`got` holds all messages of all its sockets. Numbers of frames go on over sockets, as a real agent's do."""

    def __init__(
        self,
        url: str,
        token: str,
        agent_id: str = "agent-1",
        *,
        labels: Sequence[str] = ("kici:os:linux",),
        slots: int = 1,
    ) -> None:
        self.url = url
        self.agent_id = agent_id
        self.token = token
        self.labels = tuple(labels)
        self.slots = slots
        self.boot_id = str(uuid.uuid4())
        self.skew_ms = 0
        self.draining = False
        self.not_taking = ""
        self.protocol = (PROTOCOL_MIN, PROTOCOL_MAX)
        self.got: list[FromOrchestrator] = []
        self.closed: asyncio.Future[TurnedAway] | None = None
        """Of the last socket: with what it was closed."""
        self._seq = 0
        self._beat = 0
        self._changed = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    def hello(self, attempts: Sequence[AttemptRef] = ()) -> Hello:
        return Hello(
            agent_id=self.agent_id,
            boot_id=self.boot_id,
            token=self.token,
            version="0.0-test",
            protocol_min=self.protocol[0],
            protocol_max=self.protocol[1],
            labels=self.labels,
            slots=self.slots,
            clock_ms=int(time.time() * 1000) + self.skew_ms,
            attempts=tuple(attempts),
            draining=self.draining,
        )

    async def dial(self) -> None:
        """Open a socket, and say nothing yet."""
        self._socket = await connect(self.url, compression=None, close_timeout=1, ping_interval=None)
        self.closed = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._socket, self.closed))

    async def connect(self, attempts: Sequence[AttemptRef] = ()) -> Welcome:
        """Raises `TurnedAway`."""
        await self.dial()
        seen = len(self.got)
        await self.send(self.hello(attempts), seq=0)
        assert self.closed
        closed = self.closed
        await self._until(lambda: len(self.got) > seen or closed.done(), "an answer to the hello")
        if len(self.got) == seen:
            raise closed.result()
        welcome = self.got[seen]
        assert isinstance(welcome, Welcome)
        return welcome

    async def drop(self) -> None:
        """The socket breaks, without a word."""
        if self._socket is not None:
            self._socket.transport.abort()
        await self.stop()

    async def stop(self) -> None:
        if self._reading is not None:
            if self._socket is not None:
                await self._socket.close()
            await self._reading
            self._reading = None

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, body: FromAgent, *, seq: int | None = None) -> int:
        """Returns the frame's number."""
        if seq is None:
            self._seq += 1
            seq = self._seq
        assert self._socket
        await self._socket.send(agent_frames.encode(AgentFrame(seq, body)))
        return seq

    async def tell(self, body: FromAgent, *, seq: int | None = None) -> str:
        """Send and wait for the acknowledgement: empty, or the reason of the refusal."""
        return await self.answer_to(await self.send(body, seq=seq))

    async def answer_to(self, seq: int) -> str:
        def look() -> str | None:
            for body in self.got:
                if isinstance(body, Ack):
                    if seq in body.seqs:
                        return ""
                    for number, reason in body.refused:
                        if number == seq:
                            return reason
            return None

        return await self._find(look, f"the answer to frame {seq}")

    async def beat(self) -> int:
        self._beat += 1
        await self.send(Heartbeat(self._beat, draining=self.draining, not_taking=self.not_taking), seq=0)
        return self._beat

    async def heartbeat(self) -> None:
        """Send one and wait for its answer."""
        number = await self.beat()
        await self._until(lambda: HeartbeatAck(number) in self.got, f"the answer to heartbeat {number}")

    async def begin(self, dispatch: Dispatch) -> str:
        return await self.tell(JobAccepted(dispatch.job_id, dispatch.attempt))

    async def step(self, dispatch: Dispatch, status: str, index: int = 0, **more: Any) -> str:
        return await self.tell(
            StepStatusChanged(
                job_id=dispatch.job_id,
                attempt=dispatch.attempt,
                step_index=index,
                name="run",
                status=status,
                at_ms=int(time.time() * 1000),
                **more,
            )
        )

    async def end(self, dispatch: Dispatch, status: str = "success", **more: Any) -> str:
        return await self.tell(
            JobStatusChanged(dispatch.job_id, dispatch.attempt, status, int(time.time() * 1000), **more)
        )

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def all(self, kind: type[T]) -> list[T]:
        return [body for body in self.got if isinstance(body, kind)]

    async def expect(self, kind: type[T], number: int = 1) -> T:
        """The `number`th message of this kind since the agent was made."""
        await self._until(lambda: len(self.all(kind)) >= number, f"{kind.__name__} number {number}")
        return self.all(kind)[number - 1]

    async def close_code(self) -> int | None:
        assert self.closed
        async with asyncio.timeout(DEADLINE_S):
            return (await asyncio.shield(self.closed)).code

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        await self._find(lambda: condition() or None, what)

    async def _find(self, look: Callable[[], T | None], what: str) -> T:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (found := look()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                return found
        except TimeoutError:
            raise AssertionError(f"{self.agent_id} waited for {what}; got {self.got}") from None

    async def _read(self, socket: ClientConnection, closed: asyncio.Future[TurnedAway]) -> None:
        try:
            while True:
                data = await socket.recv()
                assert isinstance(data, bytes)
                self.got += [frame.body for frame in unpack_orchestrator(data)]
                self._changed.set()
        except ConnectionClosed as end:
            received = end.rcvd
            closed.set_result(TurnedAway(received.code if received else None, received.reason if received else ""))
            self._changed.set()


@asynccontextmanager
async def agents(*fakes: FakeAgent) -> AsyncIterator[None]:
    """Whatever sockets they open are closed afterwards."""
    try:
        yield
    finally:
        for fake in fakes:
            await fake.stop()


def beating(agent: FakeAgent, *, seconds: float = 60) -> AbstractAsyncContextManager[None]:
    """As a living agent does: however slow the machine is, its silence ends again."""
    return running(_Heart(agent), seconds=seconds)


class _Heart:
    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent

    async def run(self) -> None:
        while True:
            await self._agent.beat()
            await asyncio.sleep(_BEAT_S)
