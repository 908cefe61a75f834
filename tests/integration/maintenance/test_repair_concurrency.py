from __future__ import annotations

import asyncio

import pytest

from kici.engine.lockfile import LockConcurrency
from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.maintenance.repair_concurrency import SETTINGS, Pass, RepairConcurrency
from kici.orchestrator.store import concurrency
from kici.orchestrator.store.lease import Lease
from tests.support.coordinator import Coordinator
from tests.support.locks import job
from tests.support.runs import Made, make_run

ONE = LockConcurrency("deploy", pending="queue")


def sweep(here: Coordinator, held: Lease) -> RepairConcurrency:
    return RepairConcurrency(here.pool, held, here.notifier, here.limits, SETTINGS, instance=here.instance)


async def two_runs(here: Coordinator) -> tuple[Made, Made]:
    first, second = [await make_run(here.pool, [job("a")], concurrency=ONE) for _ in range(2)]
    assert await second.statuses() == {"a": "pending"}
    return first, second


async def end_behind_the_back(here: Coordinator, made: Made) -> None:
    """A run ends and nobody hands its slot over: what no code of ours does."""
    await here.pool.execute("delete from dispatch_queue where run_id = $1", made.run_id)
    await here.pool.execute(
        "update execution_jobs set status = 'failed', completed_at = now() where run_id = $1", made.run_id
    )
    await here.pool.execute("update execution_runs set status = 'failed' where run_id = $1", made.run_id)


async def test_a_group_in_order_is_left_alone(here: Coordinator, held: Lease) -> None:
    await two_runs(here)
    assert await sweep(here, held).run_once() == Pass(0, 0, 0)


async def test_the_slot_of_a_holder_that_has_ended_goes_to_who_waits(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    await end_behind_the_back(here, first)
    assert await sweep(here, held).run_once() == Pass(found=1, ended=1, idle=1)
    assert await second.statuses() == {"a": "queued"}
    assert await second.queue_row("a")
    assert await sweep(here, held).run_once() == Pass(0, 0, 0)


async def test_a_holder_whose_run_is_gone_leaves_its_slot(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    for table in ("dispatch_queue", "execution_steps", "execution_jobs", "execution_runs"):
        await here.pool.execute(f"delete from {table} where run_id = $1", first.run_id)
    assert await sweep(here, held).run_once() == Pass(found=1, ended=1, idle=1)
    assert await second.statuses() == {"a": "queued"}


async def test_a_free_slot_beside_a_waiter_is_given_to_it(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    await here.pool.execute(
        "update concurrency_groups set status = 'completed', completed_at = now() where run_id = $1", first.run_id
    )
    assert await sweep(here, held).run_once() == Pass(found=1, ended=0, idle=1)
    assert await second.statuses() == {"a": "queued"}


async def test_a_waiter_that_has_ended_is_passed_over(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    third = await make_run(here.pool, [job("a")], concurrency=ONE)
    await end_behind_the_back(here, second)
    await end_behind_the_back(here, first)
    assert await sweep(here, held).run_once() == Pass(found=1, ended=2, idle=1)
    assert await third.statuses() == {"a": "queued"}


async def test_a_group_that_somebody_works_on_waits_for_the_next_pass(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    await end_behind_the_back(here, first)
    scope = (await first.run())["concurrency_scope"]
    async with asyncio.timeout(10), here.pool.acquire() as db, db.transaction():
        await concurrency.lock_scopes(db, [scope])
        assert await sweep(here, held).run_once() == Pass(found=1, ended=0, idle=0)
    assert await sweep(here, held).run_once() == Pass(found=1, ended=1, idle=1)
    assert await second.statuses() == {"a": "queued"}


async def test_a_replaced_leader_repairs_nothing(here: Coordinator, held: Lease) -> None:
    first, second = await two_runs(here)
    await end_behind_the_back(here, first)
    await here.pool.execute("update leases set token = token + 1")
    with pytest.raises(LeaseLost):
        await sweep(here, held).run_once()
    assert await second.statuses() == {"a": "pending"}
