from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from kici.engine.lifecycle import TERMINAL_JOB
from kici.engine.lockfile import LockConcurrency, LockNeed, Retry
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.expiry import expire
from kici.orchestrator.lifecycle.locked import lock_jobs
from kici.orchestrator.lifecycle.loss import give_up
from kici.orchestrator.store import concurrency
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job
from tests.support.runs import Made

ONE = LockConcurrency("deploy")
QUEUE = LockConcurrency("deploy", pending="queue")
CANCEL = LockConcurrency("deploy", cancel_in_progress=True)


async def slots(rig: Rig) -> list[tuple[str, str | None, str]]:
    """(run, job, status) of all that holds or waits, in the order of arrival."""
    rows = await rig.pool.fetch(
        """
        select run_id, job_id, status from concurrency_groups where status in ('active', 'queued') order by arrival
        """
    )
    return [(row["run_id"], row["job_id"], row["status"]) for row in rows]


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_second_run_of_the_group_waits_and_none_of_its_jobs_is_queued(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(job("a"), job("b", needs=["a"]), concurrency=ONE)
    assert await first.statuses() == {"a": "queued"}
    assert await second.statuses() == {"a": "pending", "b": "pending"}
    assert (await second.run())["status"] == "pending"
    assert await second.queue_row("a") is None
    assert await slots(rig) == [(first.run_id, None, "active"), (second.run_id, None, "queued")]


async def test_other_groups_repositories_and_scopes_do_not_wait_for_each_other(rig: Rig) -> None:
    await rig.make(job("a"), concurrency=ONE)
    for others in (
        {"concurrency": LockConcurrency("other")},
        {"concurrency": ONE, "repo": "local/other"},
        {"concurrency": ONE, "scope": "internal:local::local/demo::pr-7"},
        {"concurrency": ONE, "scope": "internal:local::local/demo::pr-8"},
        {},
    ):
        made = await rig.make(job("a"), **others)
        assert await made.statuses() == {"a": "queued"}


Ending: TypeAlias = Callable[[Rig, Made], Awaitable[object]]


async def succeed(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    assert await rig.end(made["a"]) == ""


async def fail(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    assert await rig.end(made["a"], "failed") == ""


async def cancel_queued(rig: Rig, made: Made) -> None:
    await rig.cancel(made)


async def cancel_running(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    await rig.cancel(made)
    assert await rig.end(made["a"], "cancelled") == ""


async def cancel_and_lose(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    await rig.cancel(made)
    await leave(rig)


async def lose(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    await rig.step(made["a"], "running")
    await leave(rig)
    assert (await made.statuses())["a"] == "infra_lost"


async def give_up_waiting(rig: Rig, made: Made) -> None:
    await rig.begin(made)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20)
    async with rig.pool.acquire() as db, db.transaction():
        await give_up(db, await lock_jobs(db, rig.limits, [made["a"]]), {made["a"]: "silent"})


async def expire_in_the_queue(rig: Rig, made: Made) -> None:
    async with rig.pool.acquire() as db, db.transaction():
        await expire(db, await lock_jobs(db, rig.limits, [made["a"]]), {made["a"]: "nobody"})


async def leave(rig: Rig) -> None:
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.leave(db, rig.limits, rig.sessions["agent-1"].id)


ENDINGS: list[Ending] = [
    succeed,
    fail,
    cancel_queued,
    cancel_running,
    cancel_and_lose,
    lose,
    give_up_waiting,
    expire_in_the_queue,
]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_end_of_a_run_however_it_ends_hands_its_slot_over(rig: Rig, ending: Ending) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(job("a"), concurrency=ONE)
    await ending(rig, first)
    assert (await first.run())["completed_at"] is not None
    assert await slots(rig) == [(second.run_id, None, "active")]
    assert await second.statuses() == {"a": "queued"}
    assert await second.queue_row("a")


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_end_of_a_job_however_it_ends_hands_its_slot_over(rig: Rig, ending: Ending) -> None:
    first = await rig.make(job("a", concurrency=ONE), job("after", needs=[LockNeed("a", tuple(TERMINAL_JOB))]))
    second = await rig.make(job("a", concurrency=ONE))
    assert await second.statuses() == {"a": "pending"}
    await ending(rig, first)
    assert await slots(rig) == [(second.run_id, second["a"], "active")]
    assert await second.statuses() == {"a": "queued"}


async def test_a_run_that_is_born_ended_leaves_the_group_at_once(rig: Rig) -> None:
    bad = await rig.make(job("a"), concurrency=ONE, problems=["a"])
    assert (await bad.run())["status"] == "failed"
    assert await slots(rig) == []
    first = await rig.make(job("a"), concurrency=QUEUE)
    await rig.make(job("a"), concurrency=QUEUE, problems=["a"])
    third = await rig.make(job("a"), concurrency=QUEUE)
    assert [run for run, _, _ in await slots(rig)] == [first.run_id, third.run_id]


async def test_a_run_keeps_its_slot_until_its_last_job_has_ended_and_through_new_attempts(rig: Rig) -> None:
    first = await rig.make(job("a", retry_on_infra=Retry(3, delay_ms=0)), job("b", needs=["a"]), concurrency=ONE)
    second = await rig.make(job("a"), concurrency=ONE)
    await rig.begin(first)
    await rig.step(first["a"], "running")
    await leave(rig)
    assert (await first.statuses())["a"] == "queued"
    rig.sessions.clear()
    await rig.begin(first)
    await rig.end(first["a"], attempt=2)
    assert await second.statuses() == {"a": "pending"}
    await rig.begin(first)
    await rig.end(first["b"])
    assert await second.statuses() == {"a": "queued"}


async def test_the_newest_supersedes_the_run_that_waits(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(job("a"), job("b", needs=[LockNeed("a", ("cancelled",))]), concurrency=ONE)
    third = await rig.make(job("a"), concurrency=ONE)
    run = await second.run()
    assert (run["status"], run["cancelled_by"]) == ("cancelled", "orchestrator:concurrency")
    assert run["failure_reason"] == f"superseded by run {third.run_id} in concurrency group deploy"
    assert await second.statuses() == {"a": "cancelled", "b": "cancelled"}
    assert await slots(rig) == [(first.run_id, None, "active"), (third.run_id, None, "queued")]


async def test_with_queue_all_run_one_after_the_other_in_the_order_of_arrival(rig: Rig) -> None:
    made = [await rig.make(job("a"), concurrency=QUEUE) for _ in range(4)]
    for at, one in enumerate(made):
        assert [(await other.statuses())["a"] for other in made[at:]] == ["queued", *["pending"] * (3 - at)]
        await rig.begin(one)
        await rig.end(one["a"])
    assert await slots(rig) == []


async def test_up_to_max_run_at_a_time(rig: Rig) -> None:
    two = LockConcurrency("deploy", max=2, pending="queue")
    made = [await rig.make(job("a"), concurrency=two) for _ in range(4)]
    assert [(await one.statuses())["a"] for one in made] == ["queued", "queued", "pending", "pending"]
    await rig.cancel(made[1])
    assert [(await one.statuses())["a"] for one in made] == ["queued", "cancelled", "queued", "pending"]


async def test_cancel_in_progress_asks_the_holder_to_stop_and_starts_when_it_has(rig: Rig) -> None:
    first = await rig.make(job("a"), job("b", needs=[LockNeed("a", ("cancelled",))]), concurrency=CANCEL)
    await rig.begin(first)
    second = await rig.make(job("a"), concurrency=CANCEL)
    run = await first.run()
    assert (run["status"], run["cancelled_by"]) == ("cancelling", "orchestrator:concurrency")
    assert await first.statuses() == {"a": "cancelling", "b": "cancelled"}
    assert await second.statuses() == {"a": "pending"}
    await rig.end(first["a"], "cancelled")
    assert (await first.run())["failure_reason"] == f"superseded by run {second.run_id} in concurrency group deploy"
    assert await second.statuses() == {"a": "queued"}


async def test_a_holder_that_has_not_begun_makes_way_in_the_same_transaction(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=CANCEL)
    second = await rig.make(job("a"), concurrency=CANCEL)
    assert (await first.run())["status"] == "cancelled"
    assert await second.statuses() == {"a": "queued"}
    assert await slots(rig) == [(second.run_id, None, "active")]


async def test_only_as_many_of_the_oldest_are_stopped_as_it_takes(rig: Rig) -> None:
    two = LockConcurrency("deploy", max=2, cancel_in_progress=True)
    first, second = [await rig.make(job("a"), concurrency=two) for _ in range(2)]
    await rig.begin(first)
    third = await rig.make(job("a"), concurrency=two)
    assert [(await one.run())["status"] for one in (first, second, third)] == ["cancelling", "running", "pending"]
    fourth = await rig.make(job("a"), concurrency=two)
    assert [(await one.run())["status"] for one in (first, second, third, fourth)] == [
        *("cancelling", "running", "cancelled", "pending")
    ]
    await rig.end(first["a"], "cancelled")
    assert await fourth.statuses() == {"a": "queued"}


async def test_a_waiting_run_that_is_cancelled_leaves_the_line(rig: Rig) -> None:
    first, second, third = [await rig.make(job("a"), concurrency=QUEUE) for _ in range(3)]
    result = await rig.cancel(second)
    assert (result.status, result.cancelled_jobs) == ("cancelled", 1)
    assert [run for run, _, _ in await slots(rig)] == [first.run_id, third.run_id]
    await rig.cancel(first)
    assert await third.statuses() == {"a": "queued"}


async def test_a_waiting_runs_jobs_that_failed_at_birth_decide_about_others_while_it_waits(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(
        *(job("bad"), job("a"), job("no", needs=["bad"]), job("clean-up", needs=[LockNeed("bad", ("failed",))])),
        problems=["bad"],
        concurrency=ONE,
    )
    assert await second.statuses() == {"bad": "failed", "a": "pending", "no": "skipped", "clean-up": "pending"}
    await rig.cancel(first)
    assert await second.statuses() == {"bad": "failed", "a": "queued", "no": "skipped", "clean-up": "queued"}


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_joins_its_group_once_its_needs_are_met(rig: Rig) -> None:
    first = await rig.make(job("build"), job("deploy", needs=["build"], concurrency=ONE))
    assert await slots(rig) == []
    await rig.begin(first)
    await rig.end(first["build"])
    second = await rig.make(job("deploy", concurrency=ONE), job("after", needs=["deploy"]))
    assert await slots(rig) == [(first.run_id, first["deploy"], "active"), (second.run_id, second["deploy"], "queued")]
    assert (await second.job("deploy"))["needs_satisfied"] is True


async def test_the_newest_supersedes_the_job_that_waits_and_its_run_says_so(rig: Rig) -> None:
    await rig.make(job("deploy", concurrency=ONE))
    second = await rig.make(job("deploy", concurrency=ONE), job("after", needs=["deploy"]))
    third = await rig.make(job("deploy", concurrency=ONE))
    assert await second.statuses() == {"deploy": "cancelled", "after": "skipped"}
    run = await second.run()
    assert run["status"] == "cancelled"
    assert run["failure_reason"] == f"superseded by run {third.run_id} in concurrency group deploy"
    assert await second.steps("deploy") == {(1, 0): "cancelled"}


async def test_cancel_in_progress_stops_the_job_that_holds_the_slot_and_not_its_run(rig: Rig) -> None:
    first = await rig.make(job("deploy", concurrency=CANCEL), job("other"))
    await rig.begin(first)
    second = await rig.make(job("deploy", concurrency=CANCEL))
    assert await first.statuses() == {"deploy": "cancelling", "other": "running"}
    assert ("kici_cancel", rig.sessions["agent-1"].id) not in rig.told.sent  # the wake-up is the caller's to send
    reason = (await first.job("deploy"))["error_message"]
    assert reason == f"superseded by run {second.run_id} in concurrency group deploy"
    await rig.end(first["deploy"], "cancelled")
    assert await second.statuses() == {"deploy": "queued"}
    await rig.end(first["other"])
    run = await first.run()
    assert (run["status"], run["failure_reason"]) == ("cancelled", reason)


async def test_the_jobs_of_one_run_share_a_group_in_line_and_supersede_nobody(rig: Rig) -> None:
    made = await rig.make(job("deploy", matrix={"zone": ("eu", "us", "ap")}, concurrency=CANCEL))
    assert sorted((await made.statuses()).values()) == ["pending", "pending", "queued"]
    for _ in range(3):
        await rig.begin(made)
        (running,) = [name for name, status in (await made.statuses()).items() if status == "running"]
        await rig.end(made[running])
    assert set((await made.statuses()).values()) == {"success"}


async def test_the_slot_of_a_run_counts_for_its_jobs_that_name_the_same_group(rig: Rig) -> None:
    made = await rig.make(job("a", concurrency=ONE), job("b", needs=["a"], concurrency=ONE), concurrency=ONE)
    assert await slots(rig) == [(made.run_id, None, "active")]
    waiting = await rig.make(job("a", concurrency=ONE), concurrency=ONE)
    await rig.begin(made)
    await rig.end(made["a"])
    assert (await made.statuses())["b"] == "queued"
    await rig.begin(made)
    await rig.end(made["b"])
    assert await waiting.statuses() == {"a": "queued"}


async def test_a_run_that_is_cancelled_while_its_job_waits_leaves_the_line(rig: Rig) -> None:
    first = await rig.make(job("deploy", concurrency=QUEUE))
    second = await rig.make(job("deploy", concurrency=QUEUE), job("always", needs=[LockNeed("deploy", ("cancelled",))]))
    third = await rig.make(job("deploy", concurrency=QUEUE))
    result = await rig.cancel(second)
    assert (result.status, result.cancelled_jobs) == ("cancelled", 2)
    assert [run for run, _, _ in await slots(rig)] == [first.run_id, third.run_id]
    await rig.cancel(first)
    assert await third.statuses() == {"deploy": "queued"}


async def test_a_job_whose_agent_is_silent_keeps_its_slot_until_it_is_known_what_became_of_it(rig: Rig) -> None:
    first = await rig.make(job("deploy", concurrency=CANCEL))
    await rig.begin(first)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20)
    second = await rig.make(job("deploy", concurrency=CANCEL))
    assert (await first.statuses(), await second.statuses()) == ({"deploy": "cancelling"}, {"deploy": "pending"})
    await leave(rig)
    assert (await first.statuses(), await second.statuses()) == ({"deploy": "cancelled"}, {"deploy": "queued"})


async def test_a_gated_child_joins_the_group_only_with_a_place_in_the_window(rig: Rig) -> None:
    gpu = LockConcurrency("gpu", max=2, pending="queue")
    made = await rig.make(job("test", matrix={"v": ("1", "2", "3", "4")}, max_parallel=3, concurrency=gpu))
    assert list((await made.statuses()).values()) == ["queued", "queued", "pending", "pending"]
    assert [status for _, _, status in await slots(rig)] == ["active", "active", "queued"]
    assert [(await made.job(f"test ({n})"))["wave_gated"] for n in (3, 4)] == [False, True]
    await rig.begin(made)
    await rig.end(made["test (1)"])
    assert list((await made.statuses()).values()) == ["success", "running", "queued", "pending"]
    assert [status for _, _, status in await slots(rig)] == ["active", "active", "queued"]


async def test_a_handed_over_slot_starts_a_run_whose_job_supersedes_one_of_a_third_run(rig: Rig) -> None:
    """Three runs of one scope change in the transaction that ends the first."""
    gpu = LockConcurrency("gpu", cancel_in_progress=True)
    first = await rig.make(job("a"), concurrency=ONE)
    third = await rig.make(job("train", concurrency=gpu))
    second = await rig.make(job("train", concurrency=gpu), concurrency=ONE)
    assert await third.statuses() == {"train": "queued"}
    await rig.cancel(first)
    assert await second.statuses() == {"train": "queued"}
    assert await third.statuses() == {"train": "cancelled"}
    assert (await third.run())["status"] == "cancelled"


async def test_runs_without_groups_lock_nothing_and_have_no_scope(rig: Rig) -> None:
    made = await rig.make(job("a"))
    assert (await made.run())["concurrency_scope"] is None
    async with rig.pool.acquire() as db, db.transaction():
        await lock_jobs(db, rig.limits, [made["a"]])
        assert await rig.pool.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0


async def test_an_end_waits_for_a_scope_that_is_locked_elsewhere_and_holds_up_nobody(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(job("a"), concurrency=ONE)
    other = await rig.make(job("a"))
    await rig.begin(first)
    async with rig.pool.acquire() as db, db.transaction():
        await concurrency.lock_scopes(db, ["internal:local::local/demo"])
        waiting = asyncio.create_task(rig.end(first["a"]))
        assert await rig.end(other["a"]) == ""
        assert await first.statuses() == {"a": "running"}
        assert not waiting.done()
    assert await waiting == ""
    assert await second.statuses() == {"a": "queued"}


async def test_a_batch_that_cannot_have_a_waiter_now_holds_up_nobody(rig: Rig) -> None:
    first = await rig.make(job("a"), concurrency=ONE)
    second = await rig.make(job("a"), concurrency=ONE)
    other = await rig.make(job("a"))
    await rig.begin(first)
    async with rig.pool.acquire() as db, db.transaction():
        await db.execute("select from execution_runs where run_id = $1 for update", second.run_id)
        waiting = asyncio.create_task(rig.end(first["a"]))
        async with asyncio.timeout(4):
            assert await rig.end(other["a"]) == ""
        assert await first.statuses() == {"a": "running"}
    assert await waiting == ""
    assert await second.statuses() == {"a": "queued"}
