"""A log table that does not answer holds up whoever writes logs, and nobody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import zstandard
from prometheus_client import REGISTRY

from kici.wire.agent import (
    LOG_WINDOW_BYTES,
    MAX_LOG_WINDOW_BYTES,
    Ack,
    AttemptRef,
    Dispatch,
    LogChunk,
    LogWindow,
)
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until


@asynccontextmanager
async def locked_logs(database_url: str) -> AsyncIterator[None]:
    """Every read and write of log chunks waits, as behind a slow disk."""
    db = await asyncpg.connect(database_url)
    try:
        async with db.transaction():
            await db.execute("lock table log_chunks in access exclusive mode")
            yield
    finally:
        await db.close()


async def begun(here: Coordinator, agent: FakeAgent, *names: str) -> dict[str, Dispatch]:
    """Jobs whose first step runs."""
    await agent.connect()
    await make_run(here.pool, [job(name) for name in names])
    here.notifier.send("kici_queue")
    await agent.expect(Dispatch, len(names))
    found = {dispatch.name: dispatch for dispatch in agent.all(Dispatch)}
    for dispatch in found.values():
        await agent.begin(dispatch)
        await agent.step(dispatch, "running")
    return found


def chunk(dispatch: Dispatch, sequence: int, text: str = "") -> LogChunk:
    line = f"2026-01-02T03:04:05.678Z {text or f'line {sequence}'}\n".encode()
    return LogChunk(dispatch.job_id, 1, 0, sequence, sequence, 1, zstandard.ZstdCompressor().compress(line))


def retried() -> float:
    return REGISTRY.get_sample_value("kici_log_chunks_retried_total") or 0.0


async def stored(here: Coordinator, dispatch: Dispatch) -> list[int]:
    rows = await here.pool.fetch("select sequence from log_chunks where job_id = $1 order by sequence", dispatch.job_id)
    return [row["sequence"] for row in rows]


async def test_heartbeats_are_answered_and_statuses_commit_while_logs_wait(
    database_url: str,
) -> None:
    async with coordinator.running(database_url, pool_size=4) as here:
        agent = await here.agent(slots=2)
        async with agents(agent):
            found = await begun(here, agent, "noisy", "quiet")
            noisy, quiet = found["noisy"], found["quiet"]
            assert await agent.tell(chunk(noisy, 0)) == ""
            async with locked_logs(database_url):
                waiting = [await agent.send(chunk(noisy, sequence)) for sequence in range(1, 600)]
                for _ in range(5):
                    await agent.heartbeat()
                    assert await agent.step(noisy, "running", index=0) == ""
                assert await agent.step(quiet, "success") == ""
                assert await agent.end(quiet) == ""
                acknowledged = {seq for ack in agent.all(Ack) for seq in ack.seqs}
                assert not acknowledged & set(waiting)
                assert await here.pool.fetchval(
                    "select status from execution_jobs where job_id = $1", quiet.job_id
                ) == ("success")
            for seq in waiting:
                assert await agent.answer_to(seq) == ""
            assert await stored(here, noisy) == list(range(600))


async def test_the_end_of_a_job_does_not_wait_for_its_own_logs_which_come_after_it(database_url: str) -> None:
    async with coordinator.running(database_url) as here:
        agent = await here.agent()
        async with agents(agent):
            build = (await begun(here, agent, "build"))["build"]
            async with locked_logs(database_url):
                late = await agent.send(chunk(build, 0))
                assert await agent.step(build, "success", log_chunks=1) == ""
                assert await agent.end(build) == ""
            assert await agent.answer_to(late) == ""
            assert await stored(here, build) == [0]


async def test_logs_that_outlast_the_writers_patience_are_stored_in_the_end_exactly_once(database_url: str) -> None:
    async with coordinator.running(database_url) as here:
        agent = await here.agent()
        async with agents(agent):
            build = (await begun(here, agent, "build"))["build"]
            before = retried()
            async with locked_logs(database_url):
                waiting = [await agent.send(chunk(build, sequence)) for sequence in range(10)]

                async def was_cut_off() -> bool:
                    return retried() > before

                await until(was_cut_off)
                # What a reconnect does while the first copy is still on its way.
                await agent.drop()
                await agent.connect([AttemptRef(build.job_id, 1)])
                for sequence, seq in enumerate(waiting):
                    await agent.send(chunk(build, sequence), seq=seq)
                await agent.heartbeat()
            for seq in waiting:
                assert await agent.answer_to(seq) == ""
            assert await stored(here, build) == list(range(10))


async def test_an_agent_is_told_how_much_of_a_log_it_may_have_on_its_way(here: Coordinator) -> None:
    few, many = await here.agent("few"), await here.agent("many", slots=1_024)
    async with agents(few, many):
        await few.connect()
        assert await few.expect(LogWindow) == LogWindow(MAX_LOG_WINDOW_BYTES)
        await many.connect()
        assert (await few.expect(LogWindow, 2)).bytes == (await many.expect(LogWindow)).bytes == LOG_WINDOW_BYTES
        await many.drop()
        assert await few.expect(LogWindow, 3) == LogWindow(MAX_LOG_WINDOW_BYTES)


async def test_a_socket_that_ignores_every_window_is_closed_before_it_fills_the_memory(database_url: str) -> None:
    async with coordinator.running(database_url) as here:
        agent = await here.agent()
        async with agents(agent):
            build = (await begun(here, agent, "build"))["build"]
            async with locked_logs(database_url):
                greedy = asyncio.create_task(_flood(agent, build))
                try:
                    assert await agent.close_code() == 4003
                finally:
                    greedy.cancel()
                    await asyncio.wait([greedy])


async def _flood(agent: FakeAgent, dispatch: Dispatch) -> None:
    data = zstandard.ZstdCompressor().compress(os.urandom(200_000))
    for sequence in range(1_000):
        await agent.send(LogChunk(dispatch.job_id, 1, 0, sequence, sequence, 1, data))
