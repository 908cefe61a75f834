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


async def read(data: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in data])


async def test_an_artifact_is_stored_and_read_back_under_its_attempt_with_the_jobs_token(web: Web) -> None:
    web.authorization = "Bearer kjt_1"
    api = JobApi(web.url, DISPATCH)
    async with asyncio.timeout(20):
        await artifacts.upload(api, "wheel 3.11/linux", pieces(b"abc", b"", b"x" * 1_000_000))
        assert await read(artifacts.download(api, "wheel 3.11/linux")) == b"abc" + b"x" * 1_000_000
    assert [path for _, path, _ in web.requests] == [
        "/api/v1/agent/jobs/j/artifacts/wheel%203.11%2Flinux?attempt=2"
    ] * 2


async def test_a_refusal_comes_in_the_orchestrators_own_words(web: Web) -> None:
    api = JobApi(web.url, DISPATCH)
    async with asyncio.timeout(20):
        with pytest.raises(TransferFailed, match="'none' cannot be read: no such artifact"):
            await read(artifacts.download(api, "none"))
        web.authorization = "Bearer other"
        with pytest.raises(TransferFailed, match="'dist' was not stored: this token opens nothing here"):
            await artifacts.upload(api, "dist", pieces(b"abc"))


async def test_an_orchestrator_that_is_away_is_a_failed_transfer() -> None:
    async with asyncio.timeout(20):
        with pytest.raises(TransferFailed, match="did not answer"):
            await artifacts.upload(JobApi("http://127.0.0.1:1", DISPATCH), "dist", pieces(b"abc"))


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
