from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.maintenance.end_stale_waits import EndStaleWaits, Pass
from kici.orchestrator.maintenance.sweeper import Settings
from kici.orchestrator.store import lease
from kici.orchestrator.store.lease import Lease
from tests.support.coordinator import Coordinator
from tests.support.locks import job
from tests.support.runs import make_run


def service(here: Coordinator, held: Lease, settings: Settings = Settings()) -> EndStaleWaits:
    return EndStaleWaits(here.pool, held, here.notifier, here.limits, settings, instance=here.instance)


async def expire(here: Coordinator) -> None:
    await here.pool.execute("update dispatch_queue set expires_at = now() - interval '1 second'")


async def test_a_job_that_nobody_took_in_time_ends_with_its_run_and_says_why(here: Coordinator, held: Lease) -> None:
    made = await make_run(here.pool, [job("build"), job("then", needs=["build"])])
    assert await service(here, held).run_once() == Pass(0, 0)
    await expire(here)
    assert await service(here, held).run_once() == Pass(1, 1)
    stale = await made.job("build")
    assert stale["status"] == "timed_out_stale"
    assert "never dispatched to an agent" in stale["error_message"]
    assert (await made.statuses())["then"] == "skipped"
    assert (await made.run())["status"] == "failed"
    assert await made.queue_row("build") is None


async def test_the_last_provisioning_error_is_the_better_reason(here: Coordinator, held: Lease) -> None:
    made = await make_run(here.pool, [job("build")])
    await expire(here)
    await here.pool.execute("update dispatch_queue set last_provisioning_error = 'quota exceeded'")
    await service(here, held).run_once()
    assert (await made.job("build"))["error_message"] == "quota exceeded"


async def test_a_row_that_is_being_claimed_is_left_alone(here: Coordinator, held: Lease) -> None:
    made = await make_run(here.pool, [job("build")])
    await expire(here)
    async with asyncio.timeout(5), here.pool.acquire() as claimer, claimer.transaction():
        await claimer.execute("select from dispatch_queue for update")
        assert await service(here, held).run_once() == Pass(1, 0)
    assert (await made.job("build"))["status"] == "queued"


async def test_a_leader_that_was_replaced_writes_nothing(here: Coordinator, held: Lease) -> None:
    made = await make_run(here.pool, [job("build")])
    await expire(here)
    await here.pool.execute("update leases set expires_at = now() - interval '1 second'")
    async with here.pool.acquire() as db:
        assert await lease.acquire(db, held.name, "somebody else", timedelta(minutes=1))
    with pytest.raises(LeaseLost):
        await service(here, held).run_once()
    assert (await made.job("build"))["status"] == "queued"


async def test_a_backlog_is_worked_off_without_pauses(here: Coordinator, held: Lease) -> None:
    await make_run(here.pool, [job(f"job-{number}") for number in range(5)])
    await expire(here)
    passes: asyncio.Queue[Pass] = asyncio.Queue()
    settings = Settings(batch=2, interval=timedelta(hours=1))
    parts = (here.pool, held, here.notifier, here.limits, settings)
    stale = EndStaleWaits(*parts, instance=here.instance, on_pass=passes.put_nowait)
    running = asyncio.create_task(stale.run())
    try:
        async with asyncio.timeout(10):
            assert [(await passes.get()).ended for _ in range(3)] == [2, 2, 1]
    finally:
        running.cancel()
