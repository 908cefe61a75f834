from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from kici.agent import artifacts, context
from kici.agent.errors import PreparationFailed, TransferFailed
from kici.agent.job_api import JobApi
from kici.engine.events import Event, EventType
from kici.wire.agent import Checkout, Dispatch
from kici.wire.context import AgentFacts, JobContext
from tests.support.web import Web

CONTEXT = JobContext("r", "j", 2, "ci", "build", "build", Event(EventType.PUSH), secrets={"A": "b"})
AGENT = AgentFacts("agent-1", ("gpu", "kici:os:linux"), "linux", "x64")
SEEN = msgspec.structs.replace(CONTEXT, agent=AGENT)
DISPATCH = Dispatch("r", "j", 2, "ci", "build", "build", Checkout("", "", ""), "", "kjt_1")


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_an_orchestrator_that_is_away_is_a_failed_transfer() -> None:
    async with asyncio.timeout(20):
        with pytest.raises(TransferFailed, match="'dist' was not stored: the orchestrator did not answer"):
            await artifacts.upload(JobApi("http://127.0.0.1:1", DISPATCH, pauses_s=(0.01,)), "dist", pieces(b"abc"))


async def test_a_context_in_the_dispatch_is_not_fetched(web: Web) -> None:
    inline = msgspec.structs.replace(DISPATCH, context=CONTEXT)
    assert await context.load(inline, JobApi(web.url, inline), AGENT) == SEEN
    assert web.requests == []


async def test_a_context_that_is_too_large_for_a_message_is_fetched(web: Web) -> None:
    web.contexts["j"] = msgspec.msgpack.encode(CONTEXT)
    async with asyncio.timeout(20):
        assert await context.load(DISPATCH, JobApi(web.url, DISPATCH), AGENT) == SEEN


async def test_a_context_that_is_refused_ends_the_job(web: Web) -> None:
    web.authorization = "Bearer other"
    with pytest.raises(PreparationFailed, match="this token opens nothing here"):
        await context.load(DISPATCH, JobApi(web.url, DISPATCH), AGENT)
    assert len(web.requests) == 1


async def test_a_context_is_asked_for_again_while_the_orchestrator_is_away(web: Web) -> None:
    web.contexts["j"] = msgspec.msgpack.encode(CONTEXT)
    web.unavailable = 2
    assert await context.load(DISPATCH, JobApi(web.url, DISPATCH), AGENT) == SEEN
    assert len(web.requests) == 3
