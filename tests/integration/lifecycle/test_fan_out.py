from __future__ import annotations

import asyncio

import pytest

from kici.engine.lockfile import LockNeed
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.expiry import expire
from kici.orchestrator.lifecycle.locked import lock_jobs
from kici.wire.agent import JobAccepted
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job

FIVE = {"v": ("1", "2", "3", "4", "5")}
HALTED = "fan-out halted by fail_fast: test (1) failed"


def names(*numbers: int) -> list[str]:
    return [f"test ({number})" for number in numbers]


async def test_no_more_than_the_window_is_queued_and_the_rest_is_gated_in_order(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=2))
    assert list((await made.statuses()).values()) == ["queued", "queued", "pending", "pending", "pending"]
    assert [(await made.job(name))["wave_gated"] for name in names(1, 2, 3, 4, 5)] == [False, False, True, True, True]
    assert await rig.pool.fetchval("select count(*) from dispatch_queue") == 2


@pytest.mark.parametrize("ending", ["success", "failed", "cancelled", "skipped"])
async def test_a_place_that_gets_free_goes_to_the_next_in_the_transaction_of_the_end(rig: Rig, ending: str) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=2))
    await rig.begin(made)
    await rig.end(made["test (2)"], ending)
    assert list((await made.statuses()).values()) == ["running", ending, "queued", "pending", "pending"]
    assert (await made.job("test (3)"))["wave_gated"] is False


async def test_a_window_slides_to_its_end(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=2), job("publish", needs=["test"]))
    for number in range(1, 6):
        await rig.begin(made)
        running = [status for status in (await made.statuses()).values() if status == "running"]
        assert len(running) == min(2, 6 - number)
        await rig.end(made[f"test ({number})"])
    assert (await made.statuses())["publish"] == "queued"


async def test_children_wait_for_their_needs_before_they_take_places(rig: Rig) -> None:
    made = await rig.make(job("build"), job("test", matrix=FIVE, max_parallel=2, needs=["build"]))
    assert set((await made.statuses()).values()) == {"queued", "pending"}
    await rig.begin(made)
    await rig.end(made["build"])
    assert list((await made.statuses()).values()) == ["success", "queued", "queued", "pending", "pending", "pending"]


async def test_a_child_that_failed_at_birth_takes_no_place(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=1), problems=names(1, 2))
    assert list((await made.statuses()).values()) == ["failed", "failed", "queued", "pending", "pending"]


async def test_a_child_whose_machine_was_lost_keeps_its_place_for_the_next_attempt(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=1))
    await rig.begin(made)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.leave(db, rig.limits, rig.sessions["agent-1"].id)
    assert list((await made.statuses()).values()) == ["queued", "pending", "pending", "pending", "pending"]


async def test_fail_fast_skips_who_waits_cancels_who_is_queued_and_stops_who_runs(rig: Rig) -> None:
    made = await rig.make(
        job("test", matrix=FIVE, max_parallel=4, fail_fast=True),
        job("other"),
        job("after", needs=[LockNeed("test", ("success", "failed", "skipped", "cancelled"))]),
    )
    await rig.begin(made, *names(1, 2), "other")
    await rig.pool.execute("update dispatch_queue set session_id = null, ack_deadline = null where accepted_at is null")
    claimed = await rig.claim("agent-2")
    assert set(claimed) == {made["test (3)"], made["test (4)"]}
    await rig.end(made["test (1)"], "failed")
    assert await made.statuses() == {
        "test (1)": "failed",
        "test (2)": "cancelling",
        "test (3)": "cancelled",
        "test (4)": "cancelled",
        "test (5)": "skipped",
        "other": "running",
        "after": "pending",
    }
    assert [(await made.job(name))["error_message"] for name in names(2, 3, 5)] == [HALTED] * 3
    assert ("kici_cancel", rig.sessions["agent-1"].id) in rig.told.sent
    assert ("kici_cancel", rig.sessions["agent-2"].id) in rig.told.sent
    assert await rig.pool.fetchval("select count(*) from dispatch_queue where id = $1", made["test (3)"]) == 0
    assert await made.steps("test (5)") == {(1, 0): "skipped"}
    assert await rig.say(JobAccepted(made["test (3)"], 1), agent_id="agent-2") == "the job has ended as cancelled"
    await rig.end(made["test (2)"], "cancelled")
    assert (await made.job("test (2)"))["error_message"] == HALTED
    assert (await made.statuses())["after"] == "queued"
    assert (await made.run())["status"] == "running"


async def test_a_sibling_that_succeeds_while_it_is_stopped_has_succeeded(rig: Rig) -> None:
    made = await rig.make(job("test", matrix={"v": ("1", "2")}, fail_fast=True))
    await rig.begin(made)
    await rig.end(made["test (1)"], "failed")
    await rig.end(made["test (2)"])
    assert await made.statuses() == {"test (1)": "failed", "test (2)": "success"}
    assert (await made.job("test (2)"))["error_message"] is None
    assert (await made.run())["failure_reason"] == "Failed jobs: test (1)"


async def test_without_fail_fast_the_others_go_on(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=2))
    await rig.begin(made)
    await rig.end(made["test (1)"], "failed")
    assert list((await made.statuses()).values()) == ["failed", "running", "queued", "pending", "pending"]


async def test_a_child_that_expires_in_the_queue_halts_the_fan_out(rig: Rig) -> None:
    made = await rig.make(job("test", matrix={"v": ("1", "2", "3")}, max_parallel=1, fail_fast=True))
    async with rig.pool.acquire() as db, db.transaction():
        locked = await lock_jobs(db, rig.limits, [made["test (1)"]])
        await expire(db, locked, {made["test (1)"]: "nobody"})
    assert list((await made.statuses()).values()) == ["timed_out_stale", "skipped", "skipped"]
    assert (await made.run())["status"] == "failed"


async def test_a_cancelled_run_leaves_no_gated_child(rig: Rig) -> None:
    made = await rig.make(job("test", matrix=FIVE, max_parallel=1, fail_fast=True))
    await rig.begin(made)
    result = await rig.cancel(made)
    assert (result.status, result.cancelled_jobs) == ("cancelling", 5)
    assert list((await made.statuses()).values()) == ["cancelling", *["cancelled"] * 4]
    await rig.end(made["test (1)"], "cancelled")
    run = await made.run()
    assert (run["status"], run["failure_reason"]) == ("cancelled", "enough")


async def test_a_batch_that_cannot_have_a_sibling_now_holds_up_nobody(rig: Rig) -> None:
    made = await rig.make(job("test", matrix={"v": ("1", "2")}, fail_fast=True))
    other = await rig.make(job("a"))
    await rig.begin(made)
    async with rig.pool.acquire() as db, db.transaction():
        await db.execute("select from execution_jobs where job_id = $1 for update", made["test (2)"])
        waiting = asyncio.create_task(rig.end(made["test (1)"], "failed"))
        async with asyncio.timeout(4):
            assert await rig.end(other["a"]) == ""
        assert await made.statuses() == {"test (1)": "running", "test (2)": "running"}
    assert await waiting == ""
    assert await made.statuses() == {"test (1)": "failed", "test (2)": "cancelling"}
