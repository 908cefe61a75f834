from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from kici.orchestrator.lifecycle import status_metrics as metrics
from kici.orchestrator.lifecycle import writer
from kici.orchestrator.lifecycle.frames import SessionRef, Superseded, Taken
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import runs
from kici.wire import api
from kici.wire.agent import JobAccepted, JobRejected, JobStatusChanged
from tests.integration.lifecycle.conftest import Rig, now_ms, step
from tests.support.locks import job
from tests.support.runs import Made
from tests.support.services import running, until


async def test_an_acceptance_starts_job_and_run_and_keeps_the_hour_of_its_log(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    started = await made.job("build")
    assert (started["status"], started["attempt"], started["agent_id"]) == ("running", 1, "agent-1")
    assert started["log_hour"] == started["started_at"].replace(minute=0, second=0, microsecond=0)
    assert (await made.run())["status"] == "running"
    row = await made.queue_row("build")
    assert row
    assert row["accepted_at"] is not None
    assert row["ack_deadline"] is None
    assert ("kici_runs", made.run_id) in rig.told.sent


async def test_the_same_message_twice_changes_nothing_and_is_taken_twice(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert await rig.say(JobAccepted(made["build"], 1)) == ""
    for _ in range(2):
        assert await rig.step(made["build"], "running") == ""
    for _ in range(2):
        assert await rig.step(made["build"], "success", exit_code=0, log_chunks=3) == ""
    for _ in range(2):
        assert await rig.end(made["build"]) == ""
    assert (await made.run())["status"] == "success"
    assert await rig.pool.fetchval("select count(*) from outbox where kind = 'compact_log'") == 1


async def test_a_late_start_never_overwrites_an_end(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert await rig.step(made["build"], "failed", exit_code=3, error="no") == ""
    assert await rig.step(made["build"], "running") == ""
    assert await made.steps("build") == {(1, 0): "failed"}
    await rig.end(made["build"], "failed")
    assert await rig.step(made["build"], "running", index=-1) == ""
    assert await made.steps("build") == {(1, 0): "failed"}


async def test_a_step_that_began_in_1970_by_its_agents_clock_keeps_nobody_from_ending(rig: Rig) -> None:
    """A machine without a battery says so until its clock is set, and milliseconds of years are more than a column has
    room for."""
    made = await rig.make(job("build", steps=("first", "second")))
    await rig.begin(made)
    assert await rig.step(made["build"], "running", index=0, at_ms=1) == ""
    assert await rig.step(made["build"], "success", index=0) == ""
    assert await rig.step(made["build"], "running", index=1, at_ms=1) == ""
    await rig.pool.execute("update execution_jobs set started_at = 'epoch'")
    await rig.pool.execute("update execution_runs set started_at = 'epoch'")
    assert await rig.end(made["build"]) == ""
    assert await made.steps("build") == {(1, 0): "success", (1, 1): "success"}
    assert (await made.run())["status"] == "success"


async def test_another_end_than_the_first_is_refused_with_the_first(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.step(made["build"], "success")
    assert await rig.step(made["build"], "failed") == "the step has already ended as success"
    await rig.end(made["build"], "failed", error="first")
    assert await rig.end(made["build"]) == "the job has already ended as failed"
    assert (await made.job("build"))["error_message"] == "first"


async def test_messages_of_an_older_attempt_are_refused(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    old = rig.sessions["agent-1"]
    await rig.pool.execute("update dispatch_queue set session_id = null, accepted_at = null")
    await rig.pool.execute("update execution_jobs set status = 'queued', session_id = null")
    assert "waits for its next attempt" in await rig.end(made["build"])
    await rig.begin(made, agent_id="agent-2")
    for frame in (step(made["build"], "success"), JobStatusChanged(made["build"], 1, "success", now_ms())):
        assert await rig.say(frame, session=old) == "attempt 1 is over: the job is at attempt 2"
    assert await rig.say(JobAccepted(made["build"], 1), session=old) == "attempt 1 is not this agent's any more"
    assert (await made.job("build"))["status"] == "running"


async def test_an_attempt_of_another_agent_and_one_never_given_are_refused(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.session("agent-2")
    assert await rig.end(made["build"], agent_id="agent-2") == "attempt 1 belongs to another agent"
    assert await rig.end(made["build"], attempt=7) == "attempt 7 was not accepted"
    nobodys = "00000000-0000-0000-0000-000000000000"
    assert await rig.end(nobodys) == f"there is no job {nobodys}"
    assert await rig.end("x'; drop table") == 'there is no job "x\'; drop table"'


async def test_a_closed_sessions_messages_are_left_to_the_newer_socket(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.pool.execute("update agent_sessions set closed_at = now()")
    assert await rig.answer(step(made["build"], "running")) == Superseded()


async def test_a_job_does_not_start_under_a_lost_session_until_that_is_regained(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.claim()
    await rig.pool.execute("update agent_sessions set lost_at = now()")
    accepted = asyncio.create_task(rig.answer(JobAccepted(made["build"], 1)))
    begun = asyncio.create_task(rig.answer(step(made["build"], "running")))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(begun)
    assert not accepted.done()
    assert (await made.job("build"))["status"] == "queued"
    await rig.pool.execute("update agent_sessions set lost_at = null")
    assert [await accepted, await begun] == [Taken(), Taken()]
    assert (await made.job("build"))["status"] == "running"


async def test_a_lapsed_coordinator_commits_nothing_until_it_has_its_lease_again(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.pool.execute("update coordinators set lease_expires_at = now() - interval '1 second'")
    waiting = asyncio.create_task(rig.end(made["build"]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(waiting)
    assert (await made.job("build"))["status"] == "running"
    await rig.pool.execute("update coordinators set lease_expires_at = now() + interval '1 minute'")
    assert await waiting == ""


async def test_one_commit_serves_many_and_a_poisonous_message_harms_only_itself(rig: Rig) -> None:
    made = await rig.make(*(job(f"job-{number}") for number in range(20)))
    await rig.begin(made)
    poison = step(made["job-7"], "running", at_ms=now_ms(), step_attempt=2**40)
    frames = [step(made[f"job-{number}"], "running") for number in range(20)]
    frames.insert(7, poison)
    answers = await asyncio.gather(*(rig.say(frame) for frame in frames))
    assert answers[7].startswith("it could not be stored")
    assert answers[:7] + answers[8:] == [""] * 20
    running_steps = await rig.pool.fetchval("select count(*) from execution_steps where status = 'running'")
    assert running_steps == 20


async def test_an_end_that_cannot_be_stored_ends_the_job_all_the_same(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.pool.execute("alter table execution_jobs add constraint poor check (outputs is null)")
    assert await rig.end(made["build"], outputs={"run": 1}) == ""
    ended = await made.job("build")
    assert ended["status"] == "failed"
    assert "reported the end as success, but it could not be stored: CheckViolationError" in ended["error_message"]
    assert (await made.run())["status"] == "failed"


async def test_text_that_postgres_does_not_take_is_kept_without_it(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert await rig.step(made["build"], "failed", error="a\x00b") == ""
    assert await rig.end(made["build"], "failed", error="c\x00d", outputs={"x\x00": ["y\x00"]}) == ""
    ended = await made.job("build")
    assert ended["error_message"] == "c\ufffdd"
    assert ended["outputs"] == {"x\ufffd": ["y\ufffd"]}


async def test_a_job_locked_elsewhere_waits_and_keeps_its_order_while_others_go_on(rig: Rig) -> None:
    made = await rig.make(job("build"), job("test"))
    await rig.begin(made)
    build, test = made["build"], made["test"]
    async with rig.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from execution_jobs where job_id = $1 for update", build)
        begun = asyncio.create_task(rig.step(build, "running"))
        assert await rig.step(test, "running") == ""
        ended = [asyncio.create_task(rig.step(build, "success")), asyncio.create_task(rig.end(build))]
        assert await rig.end(test) == ""
        assert not begun.done()
        await transaction.rollback()
        assert [await one for one in (begun, *ended)] == ["", "", ""]
    assert await made.steps("build") == {(1, 0): "success"}
    assert (await made.run())["status"] == "success"


async def test_a_message_does_not_overtake_one_of_its_job_that_waits_for_a_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_S", 0.5)
    made = await rig.make(job("build"))
    await rig.begin(made)
    build = made["build"]
    put_off: list[object] = []
    monkeypatch.setattr(metrics.PUT_OFF, "inc", lambda: put_off.append(1))

    async def is_put_off() -> bool:
        return bool(put_off)

    async with rig.pool.acquire() as other, other.transaction():
        await other.execute("select from execution_jobs where job_id = $1 for update", build)
        begun = asyncio.create_task(rig.step(build, "running"))
        await until(is_put_off)
    # The row is free now, and the first message still rests.
    assert await rig.end(build) == ""
    assert await begun == ""
    assert await made.steps("build") == {(1, 0): "success"}


async def test_two_coordinators_that_end_two_jobs_at_once_release_what_needs_both_once(rig: Rig) -> None:
    for _ in range(5):
        made = await rig.make(job("a"), job("b"), job("c", needs=["a", "b"]))
        await rig.begin(made)
        other = rig.new_writer()
        async with running(other):
            session = rig.sessions["agent-1"]
            await asyncio.gather(
                rig.end(made["a"]),
                other.submit(session, JobStatusChanged(made["b"], 1, "success", now_ms())),
            )
        assert (await made.statuses())["c"] == "queued"
        await rig.begin(made)
        await rig.end(made["c"])
        assert (await made.run())["status"] == "success"


async def test_a_rejection_gives_the_claim_back_a_little_later_each_time(rig: Rig) -> None:
    made = await rig.make(job("build"))
    delays = []
    for attempt in (1, 2, 3):
        await rig.pool.execute("update dispatch_queue set not_before = now() - interval '1 second'")
        await rig.claim()
        before = await rig.pool.fetchval("select clock_timestamp()")
        for _ in range(2):
            assert await rig.say(JobRejected(made["build"], attempt, "busy")) == ""
        row = await made.queue_row("build")
        assert row
        assert (row["session_id"], row["rejections"]) == (None, attempt)
        delays.append(row["not_before"] - before)
    assert all(delay >= timedelta(seconds=least) for delay, least in zip(delays, (0.1, 0.2, 0.4), strict=True)), delays
    await rig.pool.execute("update dispatch_queue set not_before = now()")
    await rig.begin(made)
    assert await rig.say(JobRejected(made["build"], 4, "too late")) == ""
    assert (await made.job("build"))["status"] == "running"
    assert await made.steps("build") == {(4, 0): "pending"}


async def test_a_rejection_of_what_was_accepted_changes_nothing(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert await rig.say(JobRejected(made["build"], 1, "busy")) == ""
    assert (await made.job("build"))["status"] == "running"
    row = await made.queue_row("build")
    assert row
    assert row["session_id"] == rig.sessions["agent-1"].id


async def test_a_rejection_of_somebody_elses_claim_changes_nothing(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.session("agent-2")
    await rig.claim("agent-1")
    for agent_id, attempt in (("agent-2", 1), ("agent-1", 2)):
        assert await rig.say(JobRejected(made["build"], attempt, "busy"), agent_id=agent_id) == ""
    row = await made.queue_row("build")
    assert row
    assert (row["session_id"], row["rejections"]) == (rig.sessions["agent-1"].id, 0)


async def test_times_of_an_agent_with_a_wrong_clock_are_corrected_and_never_in_the_future(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    ahead = SessionRef(rig.sessions["agent-1"].id, "agent-1", skew_ms=3_600_000)
    at = now_ms() + 3_600_000
    frame = step(made["build"], "success", at_ms=at, started_at_ms=at - 1_500)
    assert await rig.say(frame, session=ahead) == ""
    row = await rig.pool.fetchrow(
        """
        select duration_ms, completed_at <= now() as past, completed_at > now() - interval '1 minute' as near
          from execution_steps
        """
    )
    assert row
    assert tuple(row) == (1_500, True, True)


async def test_steps_that_are_open_end_with_their_job_and_their_logs_are_compacted(rig: Rig) -> None:
    made = await rig.make(job("build", steps=["one", "two", "three"]))
    await rig.begin(made)
    await rig.step(made["build"], "success", 0, log_chunks=2)
    await rig.step(made["build"], "running", 1)
    await rig.end(made["build"], "failed")
    assert await made.steps("build") == {(1, 0): "success", (1, 1): "failed", (1, 2): "skipped"}
    payloads = await rig.pool.fetch("select payload from outbox where kind = 'compact_log' order by id")
    assert [(row["payload"]["step_index"], row["payload"]["chunks"]) for row in payloads] == [(0, 2), (1, None)]


async def test_a_step_that_ends_without_a_log_has_it_closed_and_nothing_is_compacted(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.step(made["build"], "running")
    assert await rig.pool.fetchval("select log_lines from execution_steps") is None
    await rig.step(made["build"], "success")
    assert await rig.pool.fetchval("select log_lines from execution_steps") == 0
    assert await rig.pool.fetchval("select count(*) from outbox") == 0


async def test_a_retry_inside_a_step_keeps_it_running(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.step(made["build"], "running")
    assert await rig.step(made["build"], "running", step_attempt=2) == ""
    assert await rig.step(made["build"], "success", step_attempt=2) == ""
    assert await rig.pool.fetchval("select step_attempt from execution_steps") == 2


async def test_an_unknown_word_is_refused(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert "no status of a step" in await rig.step(made["build"], "exploded")
    assert "cannot end a job" in await rig.end(made["build"], "timed_out_stale")


async def shown(rig: Rig, made: Made) -> tuple[api.Job, api.Step]:
    async with transaction(rig.pool) as db:
        (found,) = await runs.jobs(db, made.run_id, steps=True)
    assert found.steps
    return found, found.steps[0]


async def test_why_a_step_and_its_job_failed_is_kept_as_it_was_told(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    facts: dict[str, Any] = {
        "exit_code": 137,
        "reason": "out_of_memory",
        "signal": "SIGKILL",
        "peak_memory_bytes": 2**40,
    }
    await rig.step(made["build"], "failed", error="make failed", last_lines="a\0\nb", **facts)
    await rig.end(made["build"], "failed", error="step 'make' failed: make failed", **facts)
    told, step = await shown(rig, made)
    for one in (told, step):
        assert (one.exit_code, one.reason, one.signal, one.peak_memory_bytes) == (*facts.values(),)
    assert step.last_lines == "a\ufffd\nb"


async def test_an_older_agent_that_tells_no_kind_gives_its_jobs_one_all_the_same(rig: Rig) -> None:
    for status, reason in (("failed", "error"), ("cancelled", "cancelled"), ("success", None)):
        made = await rig.make(job("build"))
        await rig.begin(made)
        await rig.step(made["build"], "running")
        await rig.end(made["build"], status, error="why" if reason else "")
        told, step = await shown(rig, made)
        assert (told.reason, told.exit_code, told.signal, told.peak_memory_bytes) == (reason, None, None, None)
        assert step.reason == reason


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
async def test_numbers_that_no_column_holds_do_not_keep_a_job_from_ending(rig: Rig, number: int) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    assert await rig.step(made["build"], "failed", exit_code=number, peak_memory_bytes=number, reason="r" * 99) == ""
    assert await rig.end(made["build"], "failed", exit_code=number, peak_memory_bytes=number) == ""
    assert (await made.job("build"))["status"] == "failed"


async def test_who_cancelled_stands_on_the_run_and_on_jobs_that_had_not_begun(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.cancel(made)
    told, _ = await shown(rig, made)
    assert (told.status, told.reason, told.error_message) == ("cancelled", "cancelled", "enough")
