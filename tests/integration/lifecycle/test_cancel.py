from __future__ import annotations

import uuid

import pytest

from kici.engine.lockfile import LockNeed
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.wire.agent import JobAccepted
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job


async def test_what_has_not_begun_ends_at_once(rig: Rig) -> None:
    made = await rig.make(job("a"), job("b", needs=["a"]), job("c", needs=[LockNeed("b", ("cancelled",))]))
    result = await rig.cancel(made)
    assert (result.status, result.cancelled_jobs) == ("cancelled", 3)
    assert set((await made.statuses()).values()) == {"cancelled"}
    assert await rig.pool.fetchval("select count(*) from dispatch_queue") == 0
    run = await made.run()
    assert (run["status"], run["failure_reason"], run["cancelled_by"]) == ("cancelled", "enough", "me")
    assert await made.steps("a") == {(1, 0): "cancelled"}


async def test_what_has_not_begun_has_taken_no_time(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.cancel(made)
    for table in ("execution_jobs", "execution_steps"):
        rows = await rig.pool.fetch(f"select status, started_at, duration_ms from {table}")
        assert [tuple(row) for row in rows] == [("cancelled", None, None)]


async def test_what_was_sent_and_not_accepted_ends_at_once_and_its_agent_is_told(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.claim()
    result = await rig.cancel(made)
    assert result.status == "cancelled"
    assert result.wakes.sessions == {rig.sessions["agent-1"].id}
    assert await rig.say(JobAccepted(made["a"], 1)) == "the job has ended as cancelled"


async def test_what_runs_is_asked_to_stop_and_the_run_waits_for_it(rig: Rig) -> None:
    made = await rig.make(job("a", grace_period_ms=5_000), job("b", needs=[LockNeed("a", ("cancelled", "success"))]))
    await rig.begin(made)
    result = await rig.cancel(made)
    assert (result.status, result.cancelled_jobs) == ("cancelling", 2)
    assert result.wakes.sessions == {rig.sessions["agent-1"].id}
    assert await made.statuses() == {"a": "cancelling", "b": "cancelled"}
    seconds = await rig.pool.fetchval(
        "select extract(epoch from cancel_deadline - now()) from execution_jobs where status = 'cancelling'"
    )
    assert 60 < seconds <= 65
    assert await rig.end(made["a"], "cancelled") == ""
    assert (await made.run())["status"] == "cancelled"


async def test_a_job_that_succeeds_while_it_is_cancelled_has_succeeded(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.begin(made)
    await rig.cancel(made)
    assert await rig.end(made["a"]) == ""
    assert await made.statuses() == {"a": "success"}


async def test_force_shortens_the_deadline_and_asking_again_does_not_lengthen_it(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.begin(made)
    await rig.cancel(made, force=True)
    deadline = (await made.job("a"))["cancel_deadline"]
    again = await rig.cancel(made)
    assert again.status == "cancelling"
    ended = await made.job("a")
    assert (ended["cancel_deadline"], ended["cancel_force"]) == (deadline, True)


@pytest.mark.parametrize(("force", "status"), [(False, "cancelling"), (True, "cancelled")])
async def test_a_silent_agents_job_waits_for_it_unless_forced(rig: Rig, force: bool, status: str) -> None:
    made = await rig.make(job("a"))
    await rig.begin(made)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20)
    assert await made.statuses() == {"a": "recovering"}
    assert (await rig.cancel(made, force=force)).status == status
    assert await made.statuses() == {"a": status}
    if force:
        assert "the job has ended as cancelled" in await rig.end(made["a"])


async def test_a_cancelled_job_whose_agent_lost_it_is_cancelled_and_not_run_again(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.begin(made)
    await rig.cancel(made)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.leave(db, rig.limits, rig.sessions["agent-1"].id)
    assert await made.statuses() == {"a": "cancelled"}
    assert (await made.run())["status"] == "cancelled"


async def test_a_run_that_has_ended_or_never_was_cannot_be_cancelled(rig: Rig) -> None:
    made = await rig.make(job("a"))
    await rig.cancel(made)
    with pytest.raises(Conflict, match="already ended as cancelled"):
        await rig.cancel(made)
    with pytest.raises(NotFound):
        async with rig.pool.acquire() as db, db.transaction():
            await cancel_run(db, str(uuid.uuid4()), by="me", reason="", force=False)
