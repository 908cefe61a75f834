from __future__ import annotations

from datetime import timedelta

import pytest

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.maintenance.requeue_unacknowledged import Pass, RequeueUnacknowledged
from kici.orchestrator.maintenance.sweeper import Settings
from kici.orchestrator.store.lease import Lease
from kici.wire.agent import Cancel
from tests.integration.maintenance.conftest import dispatched
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import make_run


def service(here: Coordinator, held: Lease) -> RequeueUnacknowledged:
    return RequeueUnacknowledged(
        here.pool, held, here.notifier, here.limits, Settings(lease=timedelta(0)), instance=here.instance
    )


async def pass_deadline(here: Coordinator) -> None:
    await here.pool.execute(
        "update dispatch_queue set ack_deadline = now() - interval '1 second' where ack_deadline is not null"
    )


async def test_an_ack_after_the_deadline_is_refused_and_the_job_runs_elsewhere(here: Coordinator, held: Lease) -> None:
    slow, quick = await here.agent("slow"), await here.agent("quick")
    async with agents(slow, quick):
        await slow.connect()
        made = await make_run(here.pool, [job("build")])
        late = await dispatched(here, slow)
        slow.draining = True
        await slow.heartbeat()
        await quick.connect()
        await pass_deadline(here)
        assert await service(here, held).run_once() == Pass(1, 1)
        again = await dispatched(here, quick)
        assert (again.job_id, again.attempt) == (made["build"], 2)
        assert await slow.begin(late) == "attempt 1 is not this agent's any more"
        assert (await slow.expect(Cancel)).job_id == late.job_id
        assert await quick.begin(again) == ""
        assert await quick.end(again) == ""


async def test_a_late_ack_is_taken_as_long_as_nobody_took_the_claim_away(here: Coordinator, held: Lease) -> None:
    """The database may have been away: that is nobody's fault."""
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        build = await dispatched(here, agent)
        await pass_deadline(here)
        assert await agent.begin(build) == ""
        assert await service(here, held).run_once() == Pass(0, 0)
        assert (await made.job("build"))["status"] == "running"


async def test_the_fifth_unanswered_dispatch_is_the_last(here: Coordinator, held: Lease) -> None:
    agent = await here.agent(slots=5)
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        for number in range(1, 6):
            assert (await dispatched(here, agent, number)).attempt == number
            await pass_deadline(here)
            await service(here, held).run_once()
        failed = await made.job("build")
        assert failed["status"] == "failed"
        assert "did not acknowledge" in failed["error_message"]
        assert (await made.run())["status"] == "failed"


async def test_right_after_an_outage_nothing_is_taken_back(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")])
        await dispatched(here, agent)
        await pass_deadline(here)
        await here.pool.execute("update coordinators set lease_since = now()")
        careful = RequeueUnacknowledged(here.pool, held, here.notifier, here.limits, Settings(), instance=here.instance)
        assert await careful.run_once() == Pass(0, 0)


async def test_a_leader_that_was_replaced_writes_nothing(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")])
        await dispatched(here, agent)
        await pass_deadline(here)
        await here.pool.execute("update leases set expires_at = now() - interval '1 second'")
        with pytest.raises(LeaseLost):
            await service(here, held).run_once()
        assert await here.pool.fetchval("select count(*) from dispatch_queue where session_id is not null") == 1
