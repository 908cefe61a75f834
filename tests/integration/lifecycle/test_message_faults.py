"""What the status writer promises when messages come twice, in another order, or cannot be written."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from kici.orchestrator.lifecycle.frames import StatusFrame
from kici.orchestrator.lifecycle.status_metrics import REPEATED
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.store import sessions
from kici.wire.agent import JobAccepted, JobStatusChanged
from tests.integration.lifecycle.conftest import HERE, Rig, now_ms, step
from tests.support.locks import job
from tests.support.services import running

FAILING = """
create sequence tries;
create function fail_at_first() returns trigger language plpgsql as $$
begin
  if nextval('tries') <= {times} then raise exception 'again' using errcode = '{code}'; end if;
  return new;
end $$;
create trigger fail_at_first before update on execution_steps for each row execute function fail_at_first();
"""


async def test_steps_end_as_they_were_told_in_whatever_order_the_messages_come(rig: Rig) -> None:
    """All orders of two steps' beginnings and ends, each message twice, many jobs in the same batches."""
    orders = list(permutations(range(4)))
    made = await rig.make(*(job(f"job-{number}", steps=["one", "two"]) for number in range(len(orders))))
    await rig.begin(made)
    frames = []
    for number, order in enumerate(orders):
        told = [
            step(made[f"job-{number}"], status, index)
            for index, end in ((0, "success"), (1, "failed"))
            for status in ("running", end)
        ]
        frames += [told[place] for place in order for _ in range(2)]
    assert set(await asyncio.gather(*map(rig.say, frames))) == {""}
    assert await asyncio.gather(*(rig.end(made[name], "failed") for name in made.ids)) == [""] * len(orders)
    for name in made.ids:
        assert await made.steps(name) == {(1, 0): "success", (1, 1): "failed"}
    assert (await made.run())["status"] == "failed"


async def test_an_end_of_the_job_that_comes_early_stands_and_leaves_no_step_open(rig: Rig) -> None:
    """All orders of all messages of an attempt: what comes after the end is taken or refused, and changes nothing."""
    orders = list(permutations(range(5)))
    made = await rig.make(*(job(f"job-{number}", steps=["one", "two"]) for number in range(len(orders))))
    for _ in range(2):  # a claim takes a hundred
        await rig.begin(made)
    frames: list[StatusFrame] = []
    for number, order in enumerate(orders):
        job_id = made[f"job-{number}"]
        told: list[StatusFrame] = [
            step(job_id, "running", 0),
            step(job_id, "success", 0),
            step(job_id, "running", 1),
            step(job_id, "failed", 1),
            JobStatusChanged(job_id, 1, "failed", now_ms(), error="told"),
        ]
        frames += [told[place] for place in order]
    answers = await asyncio.gather(*map(rig.say, frames))
    assert {answer for answer in answers if answer} <= {
        f"the step has already ended as {status}" for status in ("skipped", "failed")
    }
    for name in made.ids:
        ended = await made.job(name)
        assert (ended["status"], ended["error_message"]) == ("failed", "told")
        steps = await made.steps(name)
        assert steps.keys() == {(1, 0), (1, 1)}
        assert steps[1, 0] in {"success", "failed", "skipped"}
        assert steps[1, 1] in {"failed", "skipped"}
    before = [await made.steps(name) for name in made.ids]
    await asyncio.gather(*map(rig.say, frames))
    assert [await made.steps(name) for name in made.ids] == before


async def test_one_poisonous_message_among_a_hundred_is_found_and_the_others_are_committed(rig: Rig) -> None:
    made = await rig.make(*(job(f"job-{number}") for number in range(100)))
    await rig.begin(made)
    frames = [
        step(made[f"job-{number}"], "running", step_attempt=2**40 if number == 50 else 1) for number in range(100)
    ]
    answers = await asyncio.gather(*map(rig.say, frames))
    assert answers[50] == "it could not be stored: DataError"
    assert answers[:50] + answers[51:] == [""] * 99
    assert await rig.pool.fetchval("select count(*) from execution_steps where status = 'running'") == 99
    assert await rig.step(made["job-50"], "running") == ""


@pytest.mark.parametrize(("code", "times"), [("40001", 2), ("40P01", 3), ("40001", 9)])
async def test_a_conflict_between_transactions_is_tried_again_until_it_is_written(
    rig: Rig, code: str, times: int
) -> None:
    """Also when it happens more often than one batch is tried: then the messages come back in a later one."""
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.pool.execute(FAILING.format(code=code, times=times))
    assert await rig.step(made["build"], "success") == ""
    assert await made.steps("build") == {(1, 0): "success"}
    assert await rig.pool.fetchval("select last_value from tries") == times + 1


async def test_what_fails_at_the_commit_is_not_acknowledged(rig: Rig) -> None:
    made = await rig.make(job("build"), job("test"))
    await rig.begin(made)
    await rig.pool.execute(
        """
        create function no() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
        create constraint trigger no after update on execution_steps deferrable initially deferred
          for each row execute function no();
        """
    )
    refusal = await rig.step(made["build"], "running")
    assert refusal == "it could not be stored: RaiseError"
    assert await made.steps("build") == {(1, 0): "pending"}
    await rig.pool.execute("drop trigger no on execution_steps")
    assert await rig.step(made["build"], "running") == ""


async def test_two_coordinators_with_messages_about_the_same_runs_never_deadlock(rig: Rig) -> None:
    mades = [await rig.make(*(job(f"job-{number}") for number in range(20))) for _ in range(3)]
    for made in mades:
        await rig.begin(made)
    other = rig.new_writer()
    session = rig.sessions["agent-1"]
    async with running(other):
        answers = await asyncio.gather(
            *(
                writer.submit(session, frame)
                for made in mades
                for number, job_id in enumerate(made.ids.values())
                for writer in (rig.writer if number % 2 else other,)
                for frame in (
                    step(job_id, "running"),
                    step(job_id, "success"),
                    JobStatusChanged(job_id, 1, "success", now_ms()),
                )
            )
        )
    assert {type(answer).__name__ for answer in answers} == {"Taken"}
    assert [(await made.run())["status"] for made in mades] == ["success"] * 3
    deadlocks = await rig.pool.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks == 0


async def test_both_coordinators_may_be_told_the_same_and_it_counts_once(rig: Rig) -> None:
    made = await rig.make(*(job(f"job-{number}") for number in range(10)))
    await rig.begin(made)
    other = rig.new_writer()
    session = rig.sessions["agent-1"]
    async with running(other):
        ends = [JobStatusChanged(job_id, 1, "success", now_ms()) for job_id in made.ids.values()]
        answers = await asyncio.gather(*(writer.submit(session, end) for end in ends for writer in (rig.writer, other)))
    assert {type(answer).__name__ for answer in answers} == {"Taken"}
    assert (await made.run())["status"] == "success"


async def test_messages_that_told_what_was_known_are_counted(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    before = REPEATED._value.get()
    assert await rig.say(JobAccepted(made["build"], 1)) == ""
    for _ in range(2):
        assert await rig.end(made["build"]) == ""
    assert REPEATED._value.get() - before == 2


async def test_a_writer_that_is_stopped_and_started_again_writes_what_it_had_not_answered(rig: Rig) -> None:
    made = await rig.make(job("build"))
    await rig.begin(made)
    gate = asyncio.Event()

    async def hold(db: object) -> None:
        await gate.wait()
        await sessions.hold_lease(db, HERE)  # type: ignore[arg-type]

    writer = StatusWriter(rig.pool, rig.told, rig.limits, hold=hold)
    async with running(writer):
        waiting = asyncio.create_task(writer.submit(rig.sessions["agent-1"], step(made["build"], "running")))
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    async with running(writer):
        assert type(await waiting).__name__ == "Taken"
    assert await made.steps("build") == {(1, 0): "running"}
