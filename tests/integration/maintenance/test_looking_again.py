"""A sweeper finds without a lock. What changes before it has the lock must not be swept away: it looks again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from kici.orchestrator.maintenance import end_stale_waits, lose_sessions, requeue_unacknowledged, settle_overdue
from kici.orchestrator.maintenance.sweeper import Settings
from kici.orchestrator.store import sessions
from kici.orchestrator.store.lease import Lease
from kici.wire.agent import Dispatch
from tests.integration.maintenance.conftest import dispatched
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, agents
from tests.support.locks import job
from tests.support.runs import Made, make_run

SETTINGS = Settings(lease=timedelta(0))


def first(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, happens: Callable[[], Awaitable[object]]) -> None:
    """Between the finding and `name`, by which the sweeper gets its locks, something happens and is committed."""
    real = getattr(module, name)

    async def after_it(*args: Any, **options: Any) -> Any:
        await happens()
        return await real(*args, **options)

    monkeypatch.setattr(module, name, after_it)


async def sent(here: Coordinator, agent: FakeAgent) -> tuple[Made, Dispatch]:
    made = await make_run(here.pool, [job("build")])
    return made, await dispatched(here, agent)


async def test_a_job_that_finds_an_agent_in_the_last_moment_does_not_expire(
    here: Coordinator, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await here.agent()
    made = await make_run(here.pool, [job("build")])
    await here.pool.execute("update dispatch_queue set expires_at = now() - interval '1 s'")
    async with agents(agent):

        async def claims() -> None:
            await agent.connect()
            await dispatched(here, agent)

        first(monkeypatch, end_stale_waits, "lock_free_jobs", claims)
        service = end_stale_waits.EndStaleWaits(
            here.pool, held, here.notifier, here.limits, SETTINGS, instance=here.instance
        )
        assert (await service.run_once()).ended == 0
        assert (await made.job("build"))["status"] == "queued"


async def test_an_acceptance_in_the_last_moment_keeps_the_job(
    here: Coordinator, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made, build = await sent(here, agent)
        await here.pool.execute("update dispatch_queue set ack_deadline = now() - interval '1 s'")

        async def accepts() -> None:
            assert await agent.begin(build) == ""

        first(monkeypatch, requeue_unacknowledged, "lock_free_jobs", accepts)
        service = requeue_unacknowledged.RequeueUnacknowledged(
            here.pool, held, here.notifier, here.limits, SETTINGS, instance=here.instance
        )
        assert (await service.run_once()).settled == 0
        assert (await made.job("build"))["status"] == "running"


async def test_an_agent_that_is_back_in_the_last_moment_keeps_its_job(
    here: Coordinator, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made, build = await sent(here, agent)
        await agent.begin(build)
        await here.pool.execute(
            """
            update execution_jobs
               set status = 'recovering', recovery_deadline = now() - interval '1 s', report_deadline = now()
            """
        )

        async def is_back() -> None:
            await here.pool.execute(
                "update execution_jobs set status = 'running', recovery_deadline = null, report_deadline = null"
            )

        first(monkeypatch, settle_overdue, "lock_free_jobs", is_back)
        service = settle_overdue.SettleOverdue(
            here.pool, held, here.notifier, here.limits, SETTINGS, instance=here.instance
        )
        await service.run_once()
        job_row = await made.job("build")
        assert (job_row["status"], job_row["attempt"]) == ("running", 1)


async def test_a_coordinator_that_renews_in_the_last_moment_keeps_its_agents(
    here: Coordinator, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made, build = await sent(here, agent)
        await agent.begin(build)
        await here.pool.execute(
            "insert into coordinators (instance, lease_expires_at, version) values ('gone', now(), 't')"
        )
        await here.pool.execute("update agent_sessions set coordinator = 'gone'")

        async def renews() -> None:
            await here.pool.execute(
                "update coordinators set lease_expires_at = now() + interval '1 h' where instance = 'gone'"
            )

        first(monkeypatch, sessions, "still_silent", renews)
        service = lose_sessions.LoseSessions(
            here.pool, held, here.notifier, here.limits, SETTINGS, instance=here.instance
        )
        assert (await service.run_once()).lost == 0
        assert (await made.job("build"))["status"] == "running"
