"""Two coordinators on one database: whichever dies or sleeps, nothing is lost, and nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kici.wire.agent import Ack, AttemptRef, Dispatch, HeartbeatAck, StepStatusChanged
from tests.support import replicas
from tests.support.cut import Cable
from tests.support.fake_agent import FakeAgent, agents, beating
from tests.support.replicas import Replicas

GATED = """
from kici import Ctx, job, push, workflow

@job(runs_on="linux")
async def gated(ctx: Ctx) -> None:
    await ctx.sh("echo before; while ! test -e {gate}; do sleep 0.05; done; echo after", gate=GATE)

ci = workflow("ci", on=push(), jobs=[gated])
"""


@pytest.fixture
async def two(database_url: str) -> AsyncIterator[Replicas]:
    async with replicas.running(database_url) as started:
        yield started


def now_ms() -> int:
    return int(time.time() * 1000)


def gated(gate: Path) -> str:
    return f"GATE = {str(gate)!r}\n{GATED}"


async def gated_run(two: Replicas, gate: Path) -> tuple[str, dict[str, Any]]:
    """A run whose job is in its step, waiting for the gate."""
    sha = await two.push(await two.repository(gated(gate)))
    run_id: str = (await two.run_of(sha))["runId"]
    job = await two.job(run_id, "gated", "running")

    async def begun() -> bool | None:
        return "before" in await two.log(run_id, job["jobId"], 0) or None

    await two.until(begun, "the step's first line", 30)
    return run_id, job


async def test_a_job_whose_coordinator_is_killed_goes_on_with_the_other(two: Replicas) -> None:
    first, second = two.coordinators
    gate = two.base / "gate"
    async with Cable(first.port) as balancer:
        await two.agent("mover", balancer.port)
        run_id, _ = await gated_run(two, gate)
        balancer.target = second.port
        two.use(second)
        await first.kill()
        gate.touch()
        assert (await two.ended(run_id))["status"] == "success"
        job = (await two.jobs(run_id))["gated"]
        assert job["attempt"] == 1
        assert await two.log(run_id, job["jobId"], 0) == ["before", "after"]


async def test_the_end_of_a_run_is_told_once_although_a_coordinator_was_killed_meanwhile(two: Replicas) -> None:
    """The first one dies with the end of the job on its way, or just after it has committed it: the agent says it
    again to the second one, which also takes over the event."""
    first, second = two.coordinators
    gate = two.base / "gate"
    after = """
@job(runs_on="linux")
async def look(ctx: Ctx) -> str:
    return ctx.event.state

after = workflow("after", on=workflow_complete("ci"), jobs=[look])
"""
    listening = gated(gate).replace("push, workflow", "push, workflow, workflow_complete") + after
    async with Cable(first.port) as balancer:
        await two.agent("mover", balancer.port)
        sha = await two.push(await two.repository(listening))
        two.use(first)
        run_id: str = (await two.run_of(sha))["runId"]
        job = await two.job(run_id, "gated", "running")

        async def begun() -> bool | None:
            return "before" in await two.log(run_id, job["jobId"], 0) or None

        await two.until(begun, "the step's first line", 30)
        balancer.target = second.port
        gate.touch()
        await first.kill()
        two.use(second)
        assert (await two.ended(run_id))["status"] == "success"

        async def told() -> list[dict[str, Any]] | None:
            return [run for run in await two.runs() if run["workflowName"] == "after"] or None

        (run,) = await two.until(told, "a run of the workflow that waits for the end", 60)
        assert (await two.ended(run["runId"]))["status"] == "success"
        assert (await two.jobs(run["runId"]))["look"]["outputs"]["look"] == "success"
    async with two.database() as db:
        assert await db.fetchval("select count(*) from event_log where provider = 'completion'") == 1
        assert await db.fetchval("select count(*) from execution_runs where workflow_name = 'after'") == 1


async def test_a_delivery_to_one_is_run_by_an_agent_of_the_other(two: Replicas) -> None:
    first, second = two.coordinators
    await two.agent("far", second.port)
    two.use(first)
    gate = two.base / "gate"
    gate.touch()
    sha = await two.push(await two.repository(gated(gate)))
    assert (await two.ended((await two.run_of(sha))["runId"]))["status"] == "success"


async def test_an_agent_killed_in_the_midst_of_a_job_is_shown_as_recovering_and_settled_when_it_comes_back(
    two: Replicas,
) -> None:
    first, _ = two.coordinators
    agent = await two.agent("dying", first.port)
    run_id, _ = await gated_run(two, two.base / "gate")
    await agent.kill()
    silent = await two.job(run_id, "gated", "recovering", deadline=15)
    assert "agent dying is silent since" in silent["waitingReason"]
    await agent.start()
    assert (await two.ended(run_id, deadline=15))["status"] == "failed"
    job = (await two.jobs(run_id))["gated"]
    assert job["status"] == "infra_lost"
    assert "agent dying came back without it; its own code had begun" in job["errorMessage"]


async def test_when_a_coordinator_dies_the_other_notes_that_its_agents_are_silent(two: Replicas) -> None:
    first, second = two.coordinators
    await two.agent("orphan", first.port)
    gate = two.base / "gate"
    run_id, _ = await gated_run(two, gate)
    two.use(second)
    await first.kill()
    silent = await two.job(run_id, "gated", "recovering")
    assert "agent orphan is silent since" in silent["waitingReason"]
    await first.start()
    gate.touch()
    assert (await two.ended(run_id))["status"] == "success"
    assert (await two.jobs(run_id))["gated"]["attempt"] == 1


async def leader(two: Replicas) -> tuple[int, int]:
    """Which coordinator leads, and the lease's token."""
    async with two.database() as db:
        row = await db.fetchrow(
            "select holder, token from leases where name = 'maintenance' and expires_at > now() for share"
        )
    if row is None:
        raise AssertionError("nobody leads now")
    for number, one in enumerate(two.coordinators):
        health = await two.http.get(f"{one.url}/health")
        if health.json()["instanceId"] == row["holder"]:
            return number, row["token"]
    raise AssertionError("somebody unknown leads")


async def test_a_leader_that_slept_in_the_midst_of_its_transaction_writes_nothing(two: Replicas) -> None:
    """It is stopped while it notes that an agent is silent, past its lease's end. The other one does it instead."""
    number, token = await two.until(lambda: leader(two), "a leader", 20)
    sleeper, other = two.coordinators[number], two.coordinators[1 - number]
    two.use(other)
    async with two.database() as db, two.database() as looking:
        session = await db.fetchval(
            """
            with gone as (
              insert into coordinators (instance, lease_expires_at, version)
              values ('gone', now() + interval '1 hour', '0')
            )
            insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, labels, slots)
            values (gen_random_uuid(), 'ghost', 'b', 'gone', 1, '{}', 1) returning id
            """
        )
        async with db.transaction():
            await db.execute("select from agent_sessions where id = $1 for update", session)
            await looking.execute("update coordinators set lease_expires_at = now() where instance = 'gone'")
            blocked = (
                "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
                " and query like '%agent_sessions%for no key update%' and datname = current_database()"
            )

            async def waits() -> bool | None:
                return await looking.fetchval(blocked) or None

            await two.until(waits, "the leader to wait for the session", 20)
            sleeper.freeze()

        async def noted() -> bool | None:
            return (
                await looking.fetchval("select lost_at is not null from agent_sessions where id = $1", session) or None
            )

        await two.until(noted, "the other one to note it", 20)
        version = "select xmin::text || ctid::text from agent_sessions where id = $1"
        written = await looking.fetchval(version, session)
        sleeper.thaw()

        async def told() -> bool | None:
            return two.said(sleeper).count("this coordinator leads no longer") > 0 or None

        await two.until(told, "the sleeper to find out", 20)
        await sleeper.ready(two.http)
        assert await looking.fetchval(version, session) == written
        row = await looking.fetchrow("select holder, token from leases where name = 'maintenance'")
        assert row is not None
        assert row["token"] == token + 1
        assert (await two.http.get(f"{other.url}/health")).json()["instanceId"] == row["holder"]


async def test_a_coordinator_that_slept_past_its_lease_acknowledges_nothing_until_it_has_it_again(
    two: Replicas,
) -> None:
    first, second = two.coordinators
    agent = FakeAgent(f"ws://127.0.0.1:{first.port}/ws", two.token, "patient")
    two.use(second)
    async with agents(agent), two.database() as db:
        run_id = (await two.run_of(await two.push(await two.repository(gated(two.base / "gate")))))["runId"]
        await agent.connect()
        dispatch = await agent.expect(Dispatch)
        await agent.begin(dispatch)
        instance = (await two.http.get(f"{first.url}/health")).json()["instanceId"]
        first.freeze()
        await two.job(run_id, "gated", "recovering")
        agent.got.clear()
        async with db.transaction():
            await db.execute("select from coordinators where instance = $1 for update", instance)
            beat = await agent.beat()
            step = StepStatusChanged(dispatch.job_id, 1, 0, "run", "running", now_ms())
            told = await agent.send(step)
            first.thaw()

            async def tried_to_renew() -> bool | None:
                return two.said(first).count("the coordinator's lease was not renewed") >= 2 or None

            await two.until(tried_to_renew, "two tries to renew the lease", 20)
            assert agent.all(Ack) == []
            assert HeartbeatAck(beat) not in agent.got
        await first.ready(two.http)
        await agent.drop()  # as an agent does whose heartbeats are not answered
        await agent.connect([AttemptRef(dispatch.job_id, 1)])
        # The session may be from a moment before the coordinator knew of its new lease: a heartbeat settles that.
        async with beating(agent):
            assert await agent.tell(step, seq=told) == ""
            await two.job(run_id, "gated", "running")
            assert await agent.end(dispatch) == ""
            assert (await two.ended(run_id))["status"] == "success"
