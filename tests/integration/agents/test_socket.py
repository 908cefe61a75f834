"""Who may come in, who is sent away, and what a heartbeat costs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import structlog
from websockets.exceptions import ConnectionClosed

from kici.orchestrator.agents.contract import Settings
from kici.wire.agent import Ack, AttemptRef, Cancel, Dispatch, Heartbeat, HeartbeatAck, JobAccepted
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, TurnedAway, agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until


async def turned_away(agent: FakeAgent) -> TurnedAway:
    with pytest.raises(TurnedAway) as caught:
        await agent.connect()
    return caught.value


async def test_an_unknown_token_is_refused_for_good(here: Coordinator) -> None:
    agent = FakeAgent(here.url, "kat_" + "0" * 64)
    async with agents(agent):
        refusal = await turned_away(agent)
    assert refusal.code == 4010
    assert await here.pool.fetchval("select count(*) from agent_sessions") == 0


async def test_labels_beyond_the_tokens_are_refused_by_name_and_the_automatic_ones_are_not(here: Coordinator) -> None:
    token = await here.agent_token(labels=["gpu"])
    offered = ("kici:os:linux", "kici:host:box", "gpu")
    good = FakeAgent(here.url, token, labels=offered)
    bad = FakeAgent(here.url, token, labels=(*offered, "prod", "kici:role:builder"))
    async with agents(good, bad):
        refusal = await turned_away(bad)
        assert refusal.code == 4011
        assert refusal.reason == "the agent's token does not grant prod, kici:role:builder"
        await good.connect()


async def test_a_token_for_all_labels_does_not_grant_ours(here: Coordinator) -> None:
    agent = FakeAgent(here.url, await here.agent_token(), labels=("kici:os:linux", "gpu", "kici:role:builder"))
    async with agents(agent):
        refusal = await turned_away(agent)
    assert refusal.reason == "the agent's token does not grant kici:role:builder"


async def test_a_protocol_that_nobody_shares_is_told_with_both_ranges(here: Coordinator) -> None:
    agent = await here.agent()
    agent.protocol = (7, 9)
    async with agents(agent):
        refusal = await turned_away(agent)
    assert refusal.code == 4005
    assert "7 to 9" in refusal.reason


async def test_who_says_nothing_is_sent_away(database_url: str) -> None:
    async with coordinator.running(database_url, settings=Settings(hello_s=0.1)) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.dial()
            assert await agent.close_code() == 4002


async def test_who_says_anything_but_hello_first_is_sent_away(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.dial()
        await agent.send(Heartbeat(1), seq=0)
        assert await agent.close_code() == 4003


async def test_an_agent_id_that_lives_under_another_token_is_refused(here: Coordinator) -> None:
    first, second = await here.agent("same"), await here.agent("same")
    async with agents(first, second):
        await first.connect()
        refusal = await turned_away(second)
        assert refusal.code == 4011
        assert "another token" in refusal.reason
        await first.heartbeat()


async def test_an_agent_whose_token_was_renewed_comes_back_but_does_not_inherit(here: Coordinator) -> None:
    first, second = await here.agent("same"), await here.agent("same")
    async with agents(first, second):
        await first.connect()
        await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await first.expect(Dispatch)
        await first.begin(build)
        await first.drop()

        async def is_dropped() -> bool:
            return all(agent.link is None for agent in here.roster.all())

        await until(is_dropped)
        welcome = await second.connect([AttemptRef(build.job_id, 1)])
        assert welcome.forget == (AttemptRef(build.job_id, 1),)
        assert (await second.expect(Dispatch)).attempt == 2


async def test_a_newer_socket_of_the_same_agent_takes_over(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        first = agent.closed
        await agent.dial()
        await agent.send(agent.hello(), seq=0)
        assert first
        async with asyncio.timeout(10):
            assert (await first).code == 4032
        await agent.heartbeat()


async def test_a_wrong_clock_is_told_with_the_number(here: Coordinator) -> None:
    agent = await here.agent()
    agent.skew_ms = -90_000
    with structlog.testing.capture_logs() as said:
        async with agents(agent):
            await agent.connect()
    (warning,) = [entry for entry in said if entry["log_level"] == "warning" and "clock" in entry["event"]]
    assert warning["ahead_s"] == pytest.approx(-90, abs=2)


async def test_heartbeats_write_nothing(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await agent.heartbeat()
        version = "select string_agg(xmin::text || ctid::text, ',') from agent_sessions"
        before = await here.pool.fetchval(version)
        for _ in range(20):
            await agent.heartbeat()
        assert await here.pool.fetchval(version) == before


async def test_without_its_lease_a_coordinator_acknowledges_nothing(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        here.lease._until = float("-inf")
        await here.pool.execute("update coordinators set lease_expires_at = now() - interval '1 second'")
        accepted = await agent.send(JobAccepted(build.job_id, 1))
        beat = await agent.beat()
        agent.got.clear()
        await agent.send(agent.hello(), seq=0)  # refused, so everything before it has been read
        assert await agent.close_code() == 4003
        assert agent.all(Ack) == []
        assert HeartbeatAck(beat) not in agent.got
        assert (await made.job("build"))["status"] == "queued"
        await here.lease.run_once()
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert await agent.tell(JobAccepted(build.job_id, 1), seq=accepted) == ""
        assert (await made.job("build"))["status"] == "running"


async def test_after_a_gap_of_the_lease_a_session_that_is_over_is_not_kept_alive(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await here.pool.execute("update agent_sessions set closed_at = now()")
        await agent.heartbeat()  # the lease never lapsed, so nobody has looked
        await here.pool.execute("update coordinators set lease_expires_at = now() - interval '1 second'")
        await here.lease.run_once()
        with suppress(ConnectionClosed):  # the coordinator may look before the heartbeat makes it look
            await agent.beat()
        assert await agent.close_code() == 4032


async def test_a_silent_agent_is_recovering_and_its_next_word_resumes_it(database_url: str) -> None:
    async with coordinator.running(database_url, settings=Settings(silent_s=1.5)) as here:
        agent = await here.agent()
        async with agents(agent):
            made = await make_run(here.pool, [job("build")])
            await agent.connect()
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            agent_session = here.roster.all()[0]

            async def is_recovering() -> bool:
                return bool((await made.job("build"))["status"] == "recovering")

            await until(is_recovering)
            assert agent_session.lost
            assert here.roster.idle() == []
            row = await made.job("build")
            assert row["recovery_deadline"] is None  # user code may have begun since: it waits for its agent
            assert row["report_deadline"] is not None
            await agent.drop()
            await agent.connect([AttemptRef(build.job_id, 1)])
            assert (await made.job("build"))["status"] == "running"
            assert await agent.end(build) == ""


async def test_on_the_same_socket_a_heartbeat_ends_the_silence_before_it_is_answered(database_url: str) -> None:
    async with coordinator.running(database_url, settings=Settings(silent_s=60)) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            made = await make_run(here.pool, [job("build")])
            here.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            here.roster.all()[0].heard_at -= 61
            assert (await here.silence.run_once()).lost == 1
            assert (await made.job("build"))["status"] == "recovering"
            await agent.heartbeat()
            assert (await made.job("build"))["status"] == "running"
            assert await here.pool.fetchval("select lost_at is null from agent_sessions where closed_at is null")


async def test_who_does_not_answer_a_dispatch_loses_its_socket(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        here.roster.all()[0].held[build.job_id].sent_at = here.roster.clock() - 60
        assert (await here.silence.run_once()).closed == 1
        assert await agent.close_code() == 4031
        await agent.connect()
        assert (await agent.expect(Dispatch, 2)).attempt == 2


async def test_a_job_that_somebody_took_away_is_withdrawn_from_its_agent(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        await agent.begin(build)
        await here.pool.execute("update dispatch_queue set session_id = null")
        await here.attention.run_once()
        cancel = await agent.expect(Cancel)
        assert (cancel.job_id, cancel.force) == (build.job_id, True)
        await here.attention.run_once()
        assert len(agent.all(Cancel)) == 1
