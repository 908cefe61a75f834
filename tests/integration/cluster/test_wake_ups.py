"""Notifications only hasten what happens without them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asyncpg import Pool, Record
from prometheus_client import REGISTRY

from kici.wire.agent import AttemptRef, Dispatch
from tests.support import coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until

HOUR = timedelta(hours=1)


async def test_what_was_not_heard_is_found_when_the_listening_connection_is_back(
    database_url: str, pool: Pool[Record]
) -> None:
    """Nobody polls here."""
    async with coordinator.running(database_url, interval=HOUR) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            await until(lambda: is_listening(here))
            await make_run(pool, [job("build")])  # and tells nobody, as if the telling had been lost
            before = REGISTRY.get_sample_value("kici_listen_reconnects_total")
            await pool.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query ilike 'listen%'"
            )
            assert before is not None
            await until(lambda: has_reconnected(before))
            assert (await agent.expect(Dispatch)).name == "build"


async def has_reconnected(before: float) -> bool:
    return (REGISTRY.get_sample_value("kici_listen_reconnects_total") or 0.0) > before


async def is_listening(here: coordinator.Coordinator) -> bool:
    return here.listener.connections > 0


async def test_without_any_notification_a_run_starts_by_polling(database_url: str, pool: Pool[Record]) -> None:
    async with coordinator.running(database_url, interval=timedelta(seconds=0.2), hearing=False) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            made = await make_run(pool, [job("build"), job("test", needs=["build"])])
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            await agent.end(build)
            test = await agent.expect(Dispatch, 2)
            await agent.begin(test)
            await agent.end(test)
            assert (await made.run())["status"] == "success"


async def test_two_coordinators_share_the_queue_and_send_no_job_twice(database_url: str, pool: Pool[Record]) -> None:
    async with coordinator.running(database_url) as one, coordinator.running(database_url) as other:
        first, second = await one.agent("first", slots=10), await other.agent("second", slots=10)
        async with agents(first, second):
            await first.connect()
            await second.connect()
            made = await make_run(pool, [job(f"job-{number}") for number in range(20)])
            one.notifier.send("kici_queue")

            async def all_sent() -> bool:
                return len(first.all(Dispatch)) + len(second.all(Dispatch)) >= 20

            await until(all_sent)
            sent = [dispatch.job_id for agent in (first, second) for dispatch in agent.all(Dispatch)]
            assert sorted(sent) == sorted(made[f"job-{number}"] for number in range(20))


@pytest.mark.parametrize("slots", [1, 3])
async def test_an_agent_that_moves_to_another_coordinator_keeps_its_jobs(
    database_url: str, pool: Pool[Record], slots: int
) -> None:
    async with coordinator.running(database_url) as one, coordinator.running(database_url) as other:
        agent = await one.agent(slots=slots)
        async with agents(agent):
            await agent.connect()
            made = await make_run(pool, [job(f"job-{number}") for number in range(slots)])
            one.notifier.send("kici_queue")
            await agent.expect(Dispatch, slots)
            sent = agent.all(Dispatch)
            for dispatch in sent:
                assert await agent.begin(dispatch) == ""
            await agent.drop()
            agent.url = other.url
            welcome = await agent.connect([AttemptRef(dispatch.job_id, 1) for dispatch in sent])
            assert welcome.forget == ()
            await asyncio.gather(*(agent.end(dispatch) for dispatch in sent))
            assert (await made.run())["status"] == "success"
            assert {row["attempt"] for row in await pool.fetch("select attempt from execution_jobs")} == {1}
