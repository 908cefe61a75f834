from __future__ import annotations

import uuid
from typing import Any

import pytest

from kici.engine.failure import Reason
from kici.engine.lockfile import Retry
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.agent_sessions import Adopted
from kici.orchestrator.lifecycle.locked import lock_jobs
from kici.orchestrator.lifecycle.loss import settle
from kici.orchestrator.store.sessions import NewSession
from kici.wire.agent import AttemptRef, JobAccepted
from tests.integration.lifecycle.conftest import HERE, Rig
from tests.support.locks import job
from tests.support.runs import Made

TWICE = Retry(attempts=2, delay_ms=4_000)


async def lose(rig: Rig, made: Made, name: str = "build") -> None:
    async with rig.pool.acquire() as db, db.transaction():
        locked = await lock_jobs(db, rig.limits, [made[name]])
        await settle(db, locked, {made[name]: "the machine burnt"})


async def delay(rig: Rig) -> float:
    seconds = await rig.pool.fetchval("select extract(epoch from not_before - now()) from dispatch_queue")
    return float(seconds)


async def make_due(rig: Rig) -> None:
    await rig.pool.execute("update dispatch_queue set not_before = now()")


async def test_before_user_code_began_a_lost_job_runs_again_at_once(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.step(made["build"], "running", index=-1)
    await lose(rig, made)
    assert (await made.job("build"))["status"] == "queued"
    assert await delay(rig) <= 0
    assert await made.steps("build") == {(1, -1): "failed", (1, 0): "skipped"}
    await rig.begin(made)
    assert (await made.job("build"))["attempt"] == 2
    assert (await made.steps("build"))[2, 0] == "pending"


@pytest.mark.parametrize(("index", "status"), [(0, "running"), (-1, "success")])
async def test_once_user_code_may_have_begun_it_does_not(rig: Rig, index: int, status: str) -> None:
    made = await rig.make(job("build"), job("then", needs=["build"]))
    await rig.begin(made)
    await rig.step(made["build"], status, index=index)
    await lose(rig, made)
    lost = await made.job("build")
    assert lost["status"] == "infra_lost"
    assert lost["error_message"].startswith("the machine burnt; its own code had begun")
    assert (await made.statuses())["then"] == "skipped"
    assert (await made.run())["status"] == "failed"
    assert await rig.end(made["build"]) == "attempt 1 is over: the job has ended as infra_lost"


async def test_its_own_policy_lets_it_run_again_after_a_delay_until_no_attempt_is_left(rig: Rig) -> None:
    made = await rig.make(job("build", retry_on_infra=TWICE))
    await rig.begin(made)
    await rig.step(made["build"], "running")
    await lose(rig, made)
    assert (await made.job("build"))["status"] == "queued"
    assert 3 < await delay(rig) <= 4
    assert await rig.claim() == {}
    await make_due(rig)
    await rig.begin(made)
    await rig.step(made["build"], "running", attempt=2)
    await lose(rig, made)
    lost = await made.job("build")
    assert lost["status"] == "infra_lost"
    assert "no attempt is left after 2" in lost["error_message"]


async def test_unanswered_dispatches_fail_the_job_in_the_end(rig: Rig) -> None:
    made = await rig.make(job("build"))
    for attempt in range(1, 6):
        assert await rig.claim() == {made["build"]: attempt}
        await lose(rig, made)
    failed = await made.job("build")
    assert failed["status"] == "failed"
    assert "attempt 5, the last one" in failed["error_message"]


async def test_a_full_disk_before_user_code_loses_the_attempt_and_in_the_end_the_job_is_lost_for_that_reason(
    rig: Rig,
) -> None:
    made = await rig.make(job("build"))
    for attempt in range(1, 6):
        await rig.begin(made)
        await rig.step(made["build"], "running", index=-1, attempt=attempt)
        await rig.step(made["build"], "failed", index=-1, attempt=attempt)
        told: dict[str, Any] = {
            "error": "disk: no space left",
            "failed_before_user_code": True,
            "reason": Reason.DISK_FULL,
        }
        assert await rig.end(made["build"], "failed", attempt, **told) == ""
        assert (await made.job("build"))["status"] == ("queued" if attempt < 5 else "infra_lost")
    lost = await made.job("build")
    assert lost["error_message"] == "agent agent-1: disk: no space left; no attempt is left after 5"
    assert lost["reason"] == "disk_full"
    assert (await made.run())["status"] == "failed"


@pytest.mark.parametrize("change", [{"failed_before_user_code": False}, {"reason": "exit_code"}])
async def test_a_failure_that_is_the_jobs_own_is_no_loss(rig: Rig, change: dict[str, Any]) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    told: dict[str, Any] = {"error": "no", "failed_before_user_code": True, "reason": Reason.DISK_FULL} | change
    assert await rig.end(made["build"], "failed", **told) == ""
    assert (await made.job("build"))["status"] == "failed"


async def test_an_agent_cannot_claim_that_the_disk_was_full_before_code_of_which_it_has_told(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.step(made["build"], "running")
    told: dict[str, Any] = {"error": "no", "failed_before_user_code": True, "reason": Reason.DISK_FULL}
    assert await rig.end(made["build"], "failed", **told) == ""
    assert (await made.job("build"))["status"] == "failed"


async def test_silence_sets_deadlines_that_count_from_our_last_acknowledgement(rig: Rig) -> None:
    made = await rig.make(job("again", retry_on_infra=TWICE), job("once"))
    await rig.begin(made)
    for name in ("again", "once"):
        await rig.step(made[name], "running")
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20)
    rows = await rig.pool.fetch(
        """
        select job_name, status, round(extract(epoch from recovery_deadline - now())) as retry,
               round(extract(epoch from report_deadline - now())) as report
          from execution_jobs order by job_name
        """
    )
    assert [tuple(row) for row in rows] == [("again", "recovering", 105, 880), ("once", "recovering", None, 880)]
    async with rig.pool.acquire() as db, db.transaction():
        assert await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20) is None
        assert await agent_sessions.be_heard(db, rig.limits, rig.sessions["agent-1"].id)
    assert await made.statuses() == {"again": "running", "once": "running"}
    assert (await made.job("again"))["recovery_deadline"] is None


async def test_an_end_reported_while_recovering_counts(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    async with rig.pool.acquire() as db, db.transaction():
        await agent_sessions.fall_silent(db, rig.limits, rig.sessions["agent-1"].id, heard_s=20)
    assert await rig.end(made["build"]) == ""
    assert (await made.run())["status"] == "success"


async def arrive(rig: Rig, *listed: AttemptRef, agent_id: str = "agent-1", **changes: Any) -> tuple[NewSession, object]:
    new = NewSession(
        **{
            "id": str(uuid.uuid4()),
            "agent_id": agent_id,
            "boot_id": "b2",
            "token_id": None,
            "coordinator": HERE,
            "protocol": 1,
            "version": "t",
            "labels": ("kici:os:linux",),
            "slots": 1,
            **changes,
        }
    )
    async with rig.pool.acquire() as db, db.transaction():
        return new, await agent_sessions.arrive(db, rig.limits, new, listed)


async def test_a_claim_that_the_agent_lists_is_still_to_be_accepted_under_the_new_session(rig: Rig) -> None:
    """Its acceptance was on its way when the socket broke."""
    made = await rig.make(job("build"))
    await rig.claim()
    new, adopted = await arrive(rig, AttemptRef(made["build"], 1))
    assert isinstance(adopted, Adopted)
    assert adopted.kept == {made["build"]: 1}
    row = await made.queue_row("build")
    assert row
    assert (row["session_id"], row["accepted_at"]) == (new.id, None)
    assert row["ack_deadline"] is not None
    rig.sessions["agent-1"] = type(rig.sessions["agent-1"])(new.id, "agent-1")
    assert await rig.say(JobAccepted(made["build"], 1)) == ""


async def test_a_hello_closes_the_sessions_that_its_agent_had(rig: Rig) -> None:
    first = await rig.session("agent-1")
    other = await rig.session("agent-2")
    new, _ = await arrive(rig)
    found = await rig.pool.fetch("select id from agent_sessions where closed_at is null")
    assert {row["id"] for row in found} == {new.id, other.id}
    assert first.id != new.id


async def test_a_cancellation_survives_the_reconnect(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.cancel(made)
    _, adopted = await arrive(rig, AttemptRef(made["build"], 1))
    assert isinstance(adopted, Adopted)
    assert adopted.forget == ()
    job_row = await made.job("build")
    assert (job_row["status"], job_row["cancel_deadline"] is not None) == ("cancelling", True)


async def test_an_older_attempt_in_the_list_is_to_be_forgotten_while_another_runs_elsewhere(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await lose(rig, made)
    await rig.begin(made, agent_id="agent-2")
    _, adopted = await arrive(rig, AttemptRef(made["build"], 1))
    assert isinstance(adopted, Adopted)
    assert adopted.forget == (AttemptRef(made["build"], 1),)
    elsewhere = await made.job("build")
    assert (elsewhere["status"], elsewhere["agent_id"], elsewhere["attempt"]) == ("running", "agent-2", 2)
