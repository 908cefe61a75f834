"""Silent agents, dead coordinators, outages: what ends, what waits, and when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from kici.engine.lockfile import Retry
from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.maintenance import lose_sessions, settle_overdue, sweeper
from kici.orchestrator.maintenance.lose_sessions import LoseSessions
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.store.lease import Lease
from kici.wire.agent import AttemptRef, Cancel, Dispatch
from tests.integration.maintenance.conftest import dispatched
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, agents
from tests.support.locks import job
from tests.support.runs import Made, make_run

AT_ONCE = timedelta(0)


def losing(here: Coordinator, held: Lease, lease: timedelta = AT_ONCE) -> LoseSessions:
    return LoseSessions(
        here.pool, held, here.notifier, here.limits, sweeper.Settings(lease=lease), instance=here.instance
    )


def settling(here: Coordinator, held: Lease, lease: timedelta = AT_ONCE) -> SettleOverdue:
    return SettleOverdue(
        here.pool, held, here.notifier, here.limits, sweeper.Settings(lease=lease), instance=here.instance
    )


async def begun(here: Coordinator, agent: FakeAgent, *, retry: Retry | None = None) -> tuple[Made, Dispatch]:
    """A job whose user code runs."""
    await agent.connect()
    made = await make_run(here.pool, [job("build", retry_on_infra=retry)])
    build = await dispatched(here, agent)
    await agent.begin(build)
    await agent.step(build, "running")
    return made, build


async def fall_silent(here: Coordinator, agent: FakeAgent) -> None:
    await agent.drop()
    here.roster.all()[0].heard_at -= 10_000
    here.roster.all()[0].link = None
    assert (await here.silence.run_once()).lost == 1


async def let_pass(here: Coordinator, seconds: int) -> None:
    await here.pool.execute(
        """
        update execution_jobs
           set recovery_deadline = recovery_deadline - make_interval(secs => $1),
               report_deadline = report_deadline - make_interval(secs => $1),
               cancel_deadline = cancel_deadline - make_interval(secs => $1)
        """,
        seconds,
    )


async def test_the_next_attempt_starts_after_the_agent_must_have_killed_the_last(
    here: Coordinator, held: Lease
) -> None:
    agent, other = await here.agent("one"), await here.agent("two")
    async with agents(agent, other):
        made, build = await begun(here, agent, retry=Retry(3, delay_ms=0))
        assert build.kill_after_silence_s == 120
        await fall_silent(here, agent)
        await other.connect()
        await let_pass(here, 110)
        assert await settling(here, held).run_once() == settle_overdue.Pass(0, 0, 0)
        assert (await made.job("build"))["status"] == "recovering"
        await let_pass(here, 15)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 1, 0)
        again = await dispatched(here, other)
        assert (again.job_id, again.attempt) == (build.job_id, 2)
        welcome = await agent.connect([AttemptRef(build.job_id, 1)])
        assert welcome.forget == (AttemptRef(build.job_id, 1),)
        assert "attempt 1 is over" in await agent.end(build)


async def test_without_a_policy_the_agent_may_report_until_the_window_closes(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        assert build.kill_after_silence_s is None
        await fall_silent(here, agent)
        await let_pass(here, 600)
        assert await settling(here, held).run_once() == settle_overdue.Pass(0, 0, 0)
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert (await made.job("build"))["status"] == "running"
        await fall_silent(here, agent)
        await let_pass(here, 901)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 1, 0)
        lost = await made.job("build")
        assert lost["status"] == "infra_lost"
        assert lost["error_message"].startswith("agent agent-1 was silent for 900 s")
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert await agent.end(build) == "attempt 1 is over: the job has ended as infra_lost"


async def test_what_may_have_begun_unseen_is_not_run_a_second_time(here: Coordinator, held: Lease) -> None:
    """We were never told of user code, but the agent does not kill: it may be running it since."""
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        build = await dispatched(here, agent)
        await agent.begin(build)
        await agent.step(build, "running", index=-1)
        await fall_silent(here, agent)
        await let_pass(here, 200)
        assert await settling(here, held).run_once() == settle_overdue.Pass(0, 0, 0)
        await let_pass(here, 701)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 1, 0)
        assert await made.statuses() == {"build": "infra_lost"}


async def test_the_agents_of_a_dead_coordinator_are_recovering_from_the_end_of_its_lease(
    here: Coordinator, held: Lease
) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent, retry=Retry(3))
        await here.pool.execute(
            """
            insert into coordinators (instance, lease_expires_at, version)
            values ('dead', now() - interval '30 seconds', 't')
            """
        )
        await here.pool.execute("update agent_sessions set coordinator = 'dead'")
        assert await losing(here, held).run_once() == lose_sessions.Pass(1, 0)
        assert await losing(here, held).run_once() == lose_sessions.Pass(0, 0)
        row = await here.pool.fetchrow(
            "select status, round(extract(epoch from recovery_deadline - now())) as left from execution_jobs"
        )
        assert row
        assert tuple(row) == ("recovering", 95)
        await agent.drop()
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert (await made.job("build"))["status"] == "running"


async def test_a_living_coordinators_sessions_are_its_own_affair(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        await begun(here, agent)
        assert await losing(here, held).run_once() == lose_sessions.Pass(0, 0)


async def test_a_session_that_was_lost_and_has_nothing_left_is_closed(here: Coordinator, held: Lease) -> None:
    agent, idle = await here.agent("busy"), await here.agent("idle")
    async with agents(agent, idle):
        await begun(here, agent)
        await idle.connect()
        await here.pool.execute("update agent_sessions set lost_at = now() - interval '121 seconds'")
        assert await losing(here, held).run_once() == lose_sessions.Pass(0, 1)
        assert await here.pool.fetchval("select agent_id from agent_sessions where closed_at is null") == "busy"


async def test_an_agent_that_does_not_report_its_cancellation_is_told_to_kill_and_then_not_waited_for(
    here: Coordinator, held: Lease
) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        async with here.pool.acquire() as db, db.transaction():
            cancelled = await cancel_run(db, made.run_id, by="me", reason="enough", force=False)
        cancelled.wakes.send(here.notifier)
        assert not (await agent.expect(Cancel)).force
        await let_pass(here, 80)
        assert await settling(here, held).run_once() == settle_overdue.Pass(0, 0, 0)
        await let_pass(here, 11)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 0, 0)
        assert (await agent.expect(Cancel, 2)).force
        assert await settling(here, held).run_once() == settle_overdue.Pass(0, 0, 0)
        await let_pass(here, 16)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 0, 1)
        ended = await made.job("build")
        assert (ended["status"], ended["error_message"]) == (
            "cancelled",
            "agent agent-1 did not report the end in time",
        )
        assert (await made.run())["status"] == "cancelled"
        assert "the job has ended as cancelled" in await agent.end(build)


async def test_nobody_is_told_to_kill_what_a_lost_agent_was_to_cancel(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, _ = await begun(here, agent)
        async with here.pool.acquire() as db, db.transaction():
            await cancel_run(db, made.run_id, by="me", reason="enough", force=False)
        await fall_silent(here, agent)
        await let_pass(here, 91)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 0, 1)
        assert await made.statuses() == {"build": "cancelled"}


Make = Callable[[Coordinator, Lease, timedelta], LoseSessions | SettleOverdue]


@pytest.mark.parametrize("make", [losing, settling])
async def test_nothing_is_held_against_an_agent_until_a_full_lease_after_an_outage(
    here: Coordinator, held: Lease, make: Make
) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, _ = await begun(here, agent)
        await fall_silent(here, agent)
        await let_pass(here, 2_000)
        if make is losing:
            await here.pool.execute("update agent_sessions set coordinator = 'gone', lost_at = null")
            await here.pool.execute("update execution_jobs set status = 'running'")
        before = await made.statuses()
        hour, long_ago = timedelta(hours=1), "now() - interval '2 hours'"
        await here.pool.execute("update coordinators set lease_since = now() - interval '59 minutes'")
        await make(here, held, hour).run_once()
        assert await made.statuses() == before  # this coordinator came back
        await here.pool.execute(f"update coordinators set lease_since = {long_ago}")
        await make(here, held, hour).run_once()
        assert await made.statuses() == before  # the test's server is younger than an hour
        await make(here, held, timedelta(0)).run_once()
        assert await made.statuses() != before


@pytest.mark.parametrize("make", [losing, settling])
async def test_a_leader_that_was_replaced_writes_nothing(here: Coordinator, held: Lease, make: Make) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, _ = await begun(here, agent)
        await fall_silent(here, agent)
        await let_pass(here, 2_000)
        await here.pool.execute("update leases set expires_at = now() - interval '1 second'")
        with pytest.raises(LeaseLost):
            await make(here, held, AT_ONCE).run_once()
        assert await made.statuses() == {"build": "recovering"}
