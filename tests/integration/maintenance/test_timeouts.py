"""Runs and jobs that take longer than they may, with agents that stop them, are slow to, or never do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from kici.orchestrator.maintenance import cancel_overdue_runs, settle_overdue, stop_overdue_jobs, sweeper
from kici.orchestrator.maintenance.cancel_overdue_runs import CancelOverdueRuns
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.maintenance.stop_overdue_jobs import StopOverdueJobs
from kici.orchestrator.store.lease import Lease
from kici.wire.agent import AttemptRef, Cancel, Dispatch
from tests.integration.maintenance.conftest import dispatched
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, agents
from tests.support.locks import job
from tests.support.runs import Made, make_run

AT_ONCE = sweeper.Settings(lease=timedelta(0))
TOO_LONG = "job_timeout: the job ran longer than its timeout of 60 s"
STUCK = f"{TOO_LONG}, and agent agent-1 did not stop it"


def parts(here: Coordinator, held: Lease, settings: sweeper.Settings = AT_ONCE) -> tuple[Any, ...]:
    return here.pool, held, here.notifier, here.limits, settings


def stopping(here: Coordinator, held: Lease, settings: sweeper.Settings = AT_ONCE) -> StopOverdueJobs:
    return StopOverdueJobs(*parts(here, held, settings), instance=here.instance)


def settling(here: Coordinator, held: Lease) -> SettleOverdue:
    return SettleOverdue(*parts(here, held), instance=here.instance)


def cancelling(here: Coordinator, held: Lease) -> CancelOverdueRuns:
    return CancelOverdueRuns(*parts(here, held), instance=here.instance)


async def begun(here: Coordinator, agent: FakeAgent, *, timeout_ms: int | None = 60_000) -> tuple[Made, Dispatch]:
    await agent.connect()
    made = await make_run(here.pool, [job("build", timeout_ms=timeout_ms), job("deploy", needs=["build"])])
    build = await dispatched(here, agent)
    await agent.begin(build)
    await agent.step(build, "running")
    return made, build


async def let_pass(here: Coordinator, seconds: int) -> None:
    await here.pool.execute(
        """
        update execution_jobs set deadline = deadline - make_interval(secs => $1),
                                  cancel_deadline = cancel_deadline - make_interval(secs => $1)
        """,
        seconds,
    )


# ── a job ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_has_its_grace_period_and_a_margin_to_stop_a_job_itself(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        assert build.timeout_ms == 60_000
        await let_pass(here, 60 + 30 + 59)
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(0, 0)
        assert await agent.end(build, "failed", error=TOO_LONG) == ""
        assert await made.statuses() == {"build": "failed", "deploy": "skipped"}
        await let_pass(here, 10)
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(0, 0)


async def test_what_an_agent_stops_only_when_asked_has_failed_all_the_same(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        await let_pass(here, 60 + 30 + 61)
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(1, 1)
        assert (await made.job("build"))["status"] == "cancelling"
        asked = await agent.expect(Cancel)
        assert (asked.job_id, asked.reason, asked.force) == (build.job_id, STUCK, False)
        assert await agent.end(build, "cancelled", error=asked.reason) == ""
        ended = await made.job("build")
        assert (ended["status"], ended["error_message"]) == ("failed", STUCK)
        assert await agent.end(build, "cancelled", error=asked.reason) == ""
        run = await made.run()
        assert (run["status"], run["failure_reason"]) == ("failed", "Failed jobs: build")


async def test_a_job_that_is_done_when_its_agent_is_asked_to_stop_it_has_succeeded(
    here: Coordinator, held: Lease
) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        await let_pass(here, 151)
        await stopping(here, held).run_once()
        assert await agent.end(build, "success") == ""
        assert await made.statuses() == {"build": "success", "deploy": "queued"}


async def test_an_agent_that_is_there_and_stuck_holds_no_job_for_ever(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        await let_pass(here, 151)
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(1, 1)
        assert not (await agent.expect(Cancel)).force
        await let_pass(here, 91)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 0, 0)
        assert (await agent.expect(Cancel, 2)).force
        await let_pass(here, 16)
        assert await settling(here, held).run_once() == settle_overdue.Pass(1, 0, 1)
        ended = await made.job("build")
        assert (ended["status"], ended["error_message"]) == (
            "failed",
            f"{STUCK}; agent agent-1 did not report the end in time",
        )
        assert "the job has ended as failed" in await agent.end(build)


async def test_a_job_whose_agent_returns_without_it_after_its_timeout_has_failed(
    here: Coordinator, held: Lease
) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, _ = await begun(here, agent)
        await let_pass(here, 151)
        await stopping(here, held).run_once()
        await agent.drop()
        await agent.connect()
        ended = await made.job("build")
        assert ended["status"] == "failed"
        assert ended["error_message"].startswith(STUCK)


async def test_a_silent_agents_job_is_left_to_its_recovery(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        made, build = await begun(here, agent)
        await here.pool.execute("update execution_jobs set status = 'recovering' where status = 'running'")
        await let_pass(here, 1_000)
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(0, 0)
        await agent.drop()
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert await stopping(here, held).run_once() == stop_overdue_jobs.Pass(1, 1)
        assert (await made.job("build"))["status"] == "cancelling"


async def test_nothing_is_stopped_until_a_full_lease_after_an_outage(here: Coordinator, held: Lease) -> None:
    """The agent has stopped it and could not say so."""
    agent = await here.agent()
    async with agents(agent):
        made, _ = await begun(here, agent)
        await let_pass(here, 1_000)
        hour = sweeper.Settings(lease=timedelta(hours=2))
        assert await stopping(here, held, hour).run_once() == stop_overdue_jobs.Pass(0, 0)
        assert (await made.job("build"))["status"] == "running"


async def test_a_job_without_a_timeout_has_the_default_and_none_where_that_is_off(
    here: Coordinator, held: Lease
) -> None:
    agent = await here.agent(slots=2)
    async with agents(agent):
        made, build = await begun(here, agent, timeout_ms=None)
        assert build.timeout_ms == 6 * 3_600_000
        left = await here.pool.fetchval(
            "select round(extract(epoch from deadline - started_at)) from execution_jobs where job_id = $1",
            made["build"],
        )
        assert left == 6 * 3_600 + 30 + 60
        here.statuses._limits = replace(here.limits, job_timeout_ms=None)
        other = await make_run(here.pool, [job("other")])
        await agent.begin(await dispatched(here, agent, 2))
        assert (await other.job("other"))["deadline"] is None


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_past_its_timeout_is_cancelled_with_that_reason(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build"), job("deploy", needs=["build"])], timeout_ms=60_000)
        assert (await made.run())["deadline"] is None  # it counts from the start, not from the queue
        build = await dispatched(here, agent)
        await agent.begin(build)
        await here.pool.execute("update execution_runs set deadline = deadline - interval '59 seconds'")
        assert await cancelling(here, held).run_once() == cancel_overdue_runs.Pass(0, 0)
        await here.pool.execute("update execution_runs set deadline = deadline - interval '2 seconds'")
        assert await cancelling(here, held).run_once() == cancel_overdue_runs.Pass(1, 1)
        reason = "workflow_timeout: run exceeded the workflow timeout of 60000ms"
        assert (await agent.expect(Cancel)).reason == reason
        assert await made.statuses() == {"build": "cancelling", "deploy": "cancelled"}
        assert await cancelling(here, held).run_once() == cancel_overdue_runs.Pass(0, 0)
        await agent.end(build, "cancelled", error=reason)
        run = await made.run()
        assert (run["status"], run["failure_reason"]) == ("cancelled", reason)
        assert run["cancelled_by"] == "orchestrator:workflow_timeout"


async def test_a_run_that_succeeds_after_all_has_no_reason_of_failure(here: Coordinator, held: Lease) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")], timeout_ms=60_000)
        build = await dispatched(here, agent)
        await agent.begin(build)
        await here.pool.execute("update execution_runs set deadline = now() - interval '1 second'")
        await cancelling(here, held).run_once()
        await agent.end(build, "success")
        run = await made.run()
        assert (run["status"], run["failure_reason"]) == ("success", None)
