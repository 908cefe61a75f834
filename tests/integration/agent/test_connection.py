from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kici.agent.connection import Connection
from kici.agent.errors import TurnedAway
from kici.agent.outbox import Outbox
from kici.agent.silence import Silence
from kici.wire.agent import (
    Ack,
    AttemptRef,
    Cancel,
    Dispatch,
    Goodbye,
    Heartbeat,
    Hello,
    JobAccepted,
    JobStatusChanged,
    LogChunk,
    Welcome,
)
from kici.wire.close_codes import CloseCode
from tests.support.agent_orchestrator import Orchestrator


class Jobs:
    """Takes what comes."""

    def __init__(self) -> None:
        self.welcomes: list[Welcome] = []
        self.cancels: list[Cancel] = []
        self.changed = asyncio.Event()

    def hello(self) -> Hello:
        return Hello("agent", "boot", "kat_1", "0", 1, 1, ("gpu",), 1, 0, attempts=(AttemptRef("j", 1),))

    def heartbeat(self, number: int) -> Heartbeat:
        return Heartbeat(number)

    def welcomed(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)
        self.changed.set()

    def dispatched(self, dispatch: Dispatch) -> None:
        raise AssertionError(dispatch)

    def cancelled(self, cancel: Cancel) -> None:
        self.cancels.append(cancel)
        self.changed.set()

    async def until(self, look: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not look():
                self.changed.clear()
                await self.changed.wait()


class Agent:
    def __init__(self, url: str) -> None:
        self.jobs = Jobs()
        self.outbox = Outbox()
        self.silence = Silence()
        self.connection = Connection(url, self.jobs, self.outbox, self.silence)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        service = asyncio.create_task(self.connection.run())
        try:
            yield self
        finally:
            service.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await service


@pytest.fixture
async def agent(orchestrator: Orchestrator) -> AsyncIterator[Agent]:
    async with Agent(orchestrator.url).running() as running:
        yield running


async def test_the_hello_comes_first_and_a_heartbeat_at_once_after_the_welcome(
    orchestrator: Orchestrator, agent: Agent
) -> None:
    orchestrator.heartbeat_s = 1000
    await orchestrator.until(lambda: orchestrator.heartbeats, "a heartbeat")
    assert orchestrator.hellos[0].labels == ("gpu",)
    assert orchestrator.hellos[0].token == "kat_1"
    agent.connection.beat()
    await orchestrator.until(lambda: len(orchestrator.heartbeats) == 2, "the second heartbeat")


async def test_what_was_not_acknowledged_is_sent_again_with_its_number_after_a_cut(
    orchestrator: Orchestrator, agent: Agent
) -> None:
    orchestrator.answer = lambda frame: Ack((frame.seq,)) if isinstance(frame.body, LogChunk) else None
    accepted = agent.outbox.put(JobAccepted("j", 1))
    agent.outbox.put_log(LogChunk("j", 1, 0, 0, 0, 1, b"x"))
    await orchestrator.body(LogChunk)
    await orchestrator.until(lambda: len(orchestrator.frames) == 2, "both frames")
    orchestrator.cut()
    await orchestrator.until(lambda: len(orchestrator.frames) == 3, "the frame again")
    assert orchestrator.frames[2] == orchestrator.frames[0]
    assert len(orchestrator.hellos) == 2
    orchestrator.answer = lambda frame: Ack((frame.seq,))
    orchestrator.cut()
    async with asyncio.timeout(20):
        assert await accepted.outcome is None


async def test_frames_that_arise_while_nobody_answers_are_sent_later(orchestrator: Orchestrator, agent: Agent) -> None:
    await orchestrator.until(lambda: orchestrator.heartbeats, "a connection")
    orchestrator.cut()
    frames = [agent.outbox.put(JobStatusChanged("j", 1, "failed", at_ms=n)) for n in range(3)]
    async with asyncio.timeout(20):
        assert [await frame.outcome for frame in frames] == [None] * 3
    assert [body.at_ms for body in orchestrator.bodies(JobStatusChanged)] == [0, 1, 2]


async def test_heartbeats_go_on_while_logs_wait_for_acknowledgements(orchestrator: Orchestrator, agent: Agent) -> None:
    orchestrator.heartbeat_s = 0.02
    orchestrator.answer = lambda frame: None
    for sequence in range(60):
        agent.outbox.put_log(LogChunk("j", 1, 0, sequence, 0, 1, bytes(65_000)))
    before = len(orchestrator.heartbeats)
    await orchestrator.until(lambda: len(orchestrator.heartbeats) > before + 5, "heartbeats")
    assert len(orchestrator.frames) < 60
    accepted = agent.outbox.put(JobAccepted("j", 1))
    await orchestrator.body(JobAccepted)
    assert not accepted.outcome.done()


async def test_a_heartbeat_that_is_answered_proves_that_we_were_known(orchestrator: Orchestrator, agent: Agent) -> None:
    orchestrator.answers_heartbeats = False
    await orchestrator.until(lambda: len(orchestrator.heartbeats) > 2, "heartbeats")
    assert agent.silence.known_at == float("-inf")
    orchestrator.answers_heartbeats = True
    await orchestrator.send(Cancel("j", 1, "so that what came before has been read"))
    await orchestrator.until(lambda: agent.silence.known_at > 0, "proof")


async def test_a_connection_whose_heartbeats_nobody_answers_is_given_up(
    orchestrator: Orchestrator, agent: Agent
) -> None:
    orchestrator.heartbeat_s, orchestrator.silent_s = 0.02, 0.05
    orchestrator.answers_heartbeats = False
    await orchestrator.until(lambda: orchestrator.hellos, "the first connection")
    orchestrator.cut()
    await orchestrator.until(lambda: len(orchestrator.hellos) > 2, "another connection")


@pytest.mark.parametrize("code", [CloseCode.AUTH_FAILED, CloseCode.REFUSED, CloseCode.PROTOCOL_VERSION])
async def test_an_orchestrator_that_will_not_have_us_ends_the_service_with_its_reason(
    orchestrator: Orchestrator, code: CloseCode
) -> None:
    orchestrator.refuse = (code, "the token was revoked")
    async with asyncio.timeout(20):
        with pytest.raises(TurnedAway, match="the token was revoked"):
            await Agent(orchestrator.url).connection.run()
    assert len(orchestrator.hellos) == 1


async def test_being_turned_away_later_ends_the_service_too(orchestrator: Orchestrator) -> None:
    agent = Agent(orchestrator.url)
    service = asyncio.create_task(agent.connection.run())
    await orchestrator.until(lambda: orchestrator.heartbeats, "a connection")
    await orchestrator.close(CloseCode.AUTH_FAILED, "the token was revoked")
    async with asyncio.timeout(20):
        with pytest.raises(TurnedAway, match="the token was revoked"):
            await service


async def test_any_other_close_is_followed_by_a_quick_return(orchestrator: Orchestrator, agent: Agent) -> None:
    for count in (1, 2, 3):
        await orchestrator.until(lambda count=count: len(orchestrator.hellos) == count, "a hello")  # type: ignore[misc]
        await orchestrator.until(lambda: orchestrator._socket, "a socket")
        socket, orchestrator._socket = orchestrator._socket, None
        assert socket
        await socket.close(CloseCode.GOING_AWAY, "restart")
    await orchestrator.until(lambda: len(orchestrator.hellos) == 4, "the fourth hello")


async def test_a_message_that_cannot_be_read_is_left_aside(orchestrator: Orchestrator, agent: Agent) -> None:
    await orchestrator.until(lambda: orchestrator.heartbeats, "a connection")
    assert orchestrator._socket
    await orchestrator._socket.send(b"\x91\x81\xa4type\xa4what")
    await orchestrator.send(Cancel("j", 1, "late"))
    await agent.jobs.until(lambda: agent.jobs.cancels)
    assert len(orchestrator.hellos) == 1


async def test_leaving_says_goodbye(orchestrator: Orchestrator, agent: Agent) -> None:
    await orchestrator.until(lambda: orchestrator.heartbeats, "a connection")
    await agent.connection.leave("drained")
    await orchestrator.until(lambda: orchestrator.others, "a goodbye")
    assert orchestrator.others == [Goodbye("drained")]


async def test_the_attempts_to_forget_are_handed_on(orchestrator: Orchestrator) -> None:
    orchestrator.forget = (AttemptRef("j", 1),)
    async with Agent(orchestrator.url).running() as agent:
        await agent.jobs.until(lambda: agent.jobs.welcomes)
        assert agent.jobs.welcomes[0].forget == (AttemptRef("j", 1),)
