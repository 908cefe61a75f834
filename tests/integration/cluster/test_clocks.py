"""Hosts' clocks say many things. Only the database's counts, and lengths of time are measured by monotonic clocks."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.agents.contract import Settings
from kici.wire.agent import Dispatch, StepStatusChanged
from tests.support import coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until

HOUR_S = 3_600
TTL = timedelta(seconds=3)
REAL = time.time


@pytest.mark.parametrize("agent_s", [-HOUR_S, 0, HOUR_S])
@pytest.mark.parametrize("coordinator_s", [-HOUR_S, 0, HOUR_S])
async def test_times_of_steps_are_right_whichever_clock_is_wrong(
    database_url: str, pool: Pool[Record], monkeypatch: pytest.MonkeyPatch, agent_s: int, coordinator_s: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: REAL() + coordinator_s)
    async with coordinator.running(database_url) as here:
        agent = await here.agent()
        agent.skew_ms = (agent_s - coordinator_s) * 1_000
        async with agents(agent):
            await agent.connect()
            made = await make_run(pool, [job("build")])
            here.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            for status in ("running", "success"):
                at_ms = int((REAL() + agent_s) * 1_000)
                frame = StepStatusChanged(build.job_id, 1, 0, "run", status, at_ms, started_at_ms=at_ms)
                assert await agent.tell(frame) == ""
            await agent.end(build)
            off = await pool.fetchval(
                """
                select greatest(abs(extract(epoch from now() - started_at)),
                                abs(extract(epoch from now() - completed_at)))
                  from execution_steps where job_id = $1 and step_index = 0
                """,
                build.job_id,
            )
            assert off < 60
            assert (await made.run())["status"] == "success"


async def test_a_clock_that_jumps_loses_no_lease_no_agent_and_no_leader(
    database_url: str, pool: Pool[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forth, and two back, in the midst of everything."""
    settings = Settings(heartbeat_s=0.2, silent_s=2)
    async with coordinator.running(database_url, settings=settings, leading=True, ttl=TTL) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            made = await make_run(pool, [job("build")])
            here.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            since = here.lease.since
            token = await pool.fetchval("select token from leases where name = 'maintenance'")
            for jump_s in (HOUR_S, -HOUR_S):
                monkeypatch.setattr(time, "time", lambda jump_s=jump_s: REAL() + jump_s)
                before = await pool.fetchval("select lease_expires_at from coordinators")

                async def renewed(before: object = before) -> bool:
                    await agent.heartbeat()
                    return bool(await pool.fetchval("select lease_expires_at > $1 from coordinators", before))

                await until(renewed)
                assert here.lease.valid()
            assert here.lease.since == since
            assert here.leader.leads
            assert await pool.fetchval("select token from leases where name = 'maintenance'") == token
            assert await made.statuses() == {"build": "running"}
            assert await agent.end(build) == ""
