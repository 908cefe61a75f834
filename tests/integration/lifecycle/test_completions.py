"""The ends of runs and jobs become events from the commit of the end, where somebody waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kici.engine.events import EventType
from kici.engine.lock_triggers import JobCompleteTrigger, LifecycleTrigger, PushTrigger, WorkflowCompleteTrigger
from kici.engine.lockfile import LockNeed
from kici.orchestrator.lifecycle.batch import Batch
from kici.orchestrator.lifecycle.frames import Item
from kici.orchestrator.store.completions import Completion
from kici.orchestrator.store.runs import Reused
from kici.wire.agent import JobStatusChanged
from tests.integration.lifecycle.conftest import Rig, now_ms
from tests.support.listeners import listen
from tests.support.locks import job


async def told(rig: Rig) -> list[tuple[str, str, str]]:
    """Kind, job and status of each event, as they were written."""
    return [(row["event"], body.job, body.status) for row, body in await events(rig)]


async def events(rig: Rig) -> list[tuple[Any, Completion]]:
    rows = await rig.pool.fetch("select * from event_log join event_payloads on event_id = id order by id")
    return [(row, msgspec.json.decode(row["body"], type=Completion)) for row in rows]


async def test_the_end_of_a_run_is_an_event_from_its_commit_on(rig: Rig) -> None:
    await listen(rig.pool, WorkflowCompleteTrigger(("ci",)))
    made = await rig.make(job("build"), job("test", needs=["build"]), chain_depth=3)
    await rig.begin(made)
    await rig.end(made["build"])
    assert await told(rig) == []
    await rig.begin(made)
    rig.told.sent.clear()
    await rig.end(made["test"], "failed", error="no")
    ((row, body),) = await events(rig)
    assert (row["provider"], row["event"], row["action"]) == ("completion", "workflow_complete", "failed")
    assert (row["status"], row["routing_key"], row["repo_identifier"]) == ("received", "internal:local", "local/demo")
    assert (body.workflow, body.repo, body.run_id, body.chain_depth) == ("ci", "local/demo", made.run_id, 4)
    assert body.payload["jobResults"] == [
        {"name": "build", "status": "success"},
        {"name": "test", "status": "failed"},
    ]
    assert ("kici_events", "") in rig.told.sent


async def test_the_end_of_each_job_is_told_with_its_name_without_the_matrix(rig: Rig) -> None:
    await listen(rig.pool, JobCompleteTrigger(workflow=("ci",)))
    made = await rig.make(
        job("test", matrix={"x": ("1", "2")}, max_parallel=2),
        job("after", needs=["test"]),
        job("asks", dynamic=("matrix",)),
    )
    await rig.begin(made)
    await rig.end(made["test (1)"])
    ((_, first),) = await events(rig)
    assert (first.job, first.payload["jobName"], first.payload["matrix"]) == ("test", "test (1)", {"x": "1"})
    assert first.payload["stepResults"] == [{"name": "run", "status": "skipped"}]
    await rig.end(made["test (2)"], "failed", error="no")
    await rig.end(made["init: asks"], "failed", error="no")
    assert await told(rig) == [
        ("job_complete", "test", "success"),
        ("job_complete", "test", "failed"),
        ("job_complete", "after", "skipped"),
        ("job_complete", "asks", "skipped"),
    ]


@pytest.mark.parametrize(
    ("events_of_lifecycle", "kinds"),
    [
        (("workflow_complete",), {"workflow_complete"}),
        (("job_failed",), {"job_complete"}),
        (("workflow_complete", "job_complete"), {"workflow_complete", "job_complete"}),
    ],
)
async def test_lifecycle_triggers_are_told_of_what_they_name(
    rig: Rig, events_of_lifecycle: tuple[str, ...], kinds: set[str]
) -> None:
    await listen(rig.pool, LifecycleTrigger(events_of_lifecycle))
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.end(made["build"])
    assert {kind for kind, _, _ in await told(rig)} == kinds


async def test_nothing_is_written_that_nobody_waits_for(rig: Rig) -> None:
    await listen(
        rig.pool, WorkflowCompleteTrigger(("other",)), JobCompleteTrigger(workflow=("other",)), PushTrigger(), name="a"
    )
    await listen(rig.pool, WorkflowCompleteTrigger(), JobCompleteTrigger(), name="off", repo="local/off")
    await rig.pool.execute("update workflow_registrations set disabled = true where workflow_name = 'off'")
    made = await rig.make(job("build"))
    await rig.begin(made)
    await rig.end(made["build"])
    assert (await made.run())["status"] == "success"
    assert await told(rig) == []


async def test_a_pull_request_starts_no_workflow_of_the_default_branch_by_its_end(rig: Rig) -> None:
    await listen(rig.pool, WorkflowCompleteTrigger(), JobCompleteTrigger())
    made = await rig.make(job("build"))
    await rig.pool.execute("update execution_runs set trust_tier = 'unknown'")
    await rig.begin(made)
    await rig.end(made["build"])
    assert await told(rig) == []


async def test_what_is_born_ended_is_told_and_what_a_rerun_takes_over_is_not(rig: Rig) -> None:
    await listen(rig.pool, WorkflowCompleteTrigger(), JobCompleteTrigger())
    first = await rig.make(job("build"), job("bad"), problems=["bad"])
    assert await told(rig) == [("job_complete", "bad", "failed")]
    await rig.begin(first)
    await rig.end(first["build"])
    await rig.pool.execute("delete from event_log")
    reused = {"build": Reused(first["build"], (await first.job("build"))["status"])}
    again = await rig.make(job("build"), job("bad", needs=[LockNeed("build")]), reused=reused)
    await rig.begin(again)
    await rig.end(again["bad"])
    assert await told(rig) == [("job_complete", "bad", "success"), ("workflow_complete", "", "success")]


async def test_two_coordinators_that_end_the_last_jobs_at_once_tell_of_the_run_once(rig: Rig) -> None:
    await listen(rig.pool, WorkflowCompleteTrigger())
    made = await rig.make(*(job(f"job-{n}") for n in range(8)))
    await rig.begin(made)
    other = rig.new_writer()
    running = asyncio.create_task(other.run())
    session = rig.sessions["agent-1"]
    ends = [JobStatusChanged(made[f"job-{n}"], 1, "success", now_ms()) for n in range(8)]
    async with asyncio.timeout(20):
        # Each end is told to both, as an agent does that has lost its socket before the answer.
        await asyncio.gather(*(writer.submit(session, end) for end in ends for writer in (rig.writer, other)))
    running.cancel()
    assert (await made.run())["status"] == "success"
    assert await told(rig) == [("workflow_complete", "", "success")]


async def test_an_end_that_is_rolled_back_is_not_told_and_the_next_one_is(rig: Rig) -> None:
    """What a coordinator had not committed when it was killed: the agent says it again, to another one."""
    await listen(rig.pool, WorkflowCompleteTrigger(), JobCompleteTrigger())
    made = await rig.make(job("build"))
    await rig.begin(made)
    end = JobStatusChanged(made["build"], 1, "success", now_ms())
    async with rig.pool.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        batch = Batch(rig.limits, [Item(1, rig.sessions["agent-1"], end)])
        await batch.apply(db)
        assert await db.fetchval("select count(*) from event_log") == 2
        await transaction.rollback()
    assert await told(rig) == []
    await rig.say(end)
    assert sorted(await told(rig)) == [("job_complete", "build", "success"), ("workflow_complete", "", "success")]


def test_the_kinds_are_those_of_events() -> None:
    from kici.engine import completions

    assert {EventType(completions.WORKFLOW), EventType(completions.JOB)} == {
        EventType.WORKFLOW_COMPLETE,
        EventType.JOB_COMPLETE,
    }
