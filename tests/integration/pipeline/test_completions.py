"""What the ends of workflows and jobs start, and how much workflows may cause."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kici.engine.lock_triggers import (
    JobCompleteTrigger,
    KiciEventTrigger,
    LifecycleTrigger,
    Trigger,
    WorkflowCompleteTrigger,
)
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.pipeline.emitted import MAX_CHAIN_DEPTH, MAX_PER_MINUTE, PROVIDER, Emitted
from kici.orchestrator.pipeline.service import Done, Settings
from kici.orchestrator.store import events
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support.locks import job, lock, workflow


async def listening(rig: Rig, *triggers: Trigger) -> str:
    """`ci`, which a push has started, and `after`. Returns the commit."""
    sha = rig.local.commit({LOCK: lock(workflow("ci", jobs=[job("build")]), workflow("after", on=triggers))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    return sha


async def end_of_ci(rig: Rig, **event: Any) -> None:
    """Cancel the run of `ci`."""
    (run,) = [run for run in await rig.runs() if run["workflow_name"] == "ci"]
    for key, value in event.items():
        await rig.pool.execute("update execution_runs set event = jsonb_set(event, $1, $2)", [key], value)
    async with rig.pool.acquire() as db, db.transaction():
        await cancel_run(db, run["run_id"], by="me", reason="enough", force=True)


async def started(rig: Rig) -> list[str]:
    """Workflows that the open events have started."""
    done = await rig.pipeline.run_once()
    ids = [run_id for one in done for run_id in one.run_ids]
    return [run["workflow_name"] for run in await rig.runs() if run["run_id"] in ids]


@pytest.mark.parametrize(
    ("trigger", "matches"),
    [
        (WorkflowCompleteTrigger(("ci",)), True),
        (WorkflowCompleteTrigger(status=("cancelled", "failed")), True),
        (WorkflowCompleteTrigger(("ci",), status=("success",)), False),
        (WorkflowCompleteTrigger(source=("team/app",)), False),
        (JobCompleteTrigger(job=("build",)), True),
        (JobCompleteTrigger(workflow=("ci",), job=("deploy",)), False),
        (LifecycleTrigger(("workflow_complete",), sources=("local/app",)), True),
        (LifecycleTrigger(("job_failed",)), False),
    ],
)
async def test_an_end_starts_the_workflows_of_default_branches_whose_filters_take_it(
    rig: Rig, trigger: Trigger, matches: bool
) -> None:
    sha = await listening(rig, trigger)
    await end_of_ci(rig)
    assert await started(rig) == ["after"] * matches
    if not matches:
        assert (await rig.last_event())["warnings"][0].startswith("local/app: after: ")
        return
    (run,) = [run for run in await rig.runs() if run["workflow_name"] == "after"]
    event = run["event"]
    assert (event["workflow"], event["state"], event["sourceRepo"]) == ("ci", "cancelled", "local/app")
    assert (event["chainDepth"], event["commit"], run["sha"]) == (1, sha, sha)
    assert event["payload"]["workflowName"] == "ci"


async def test_a_workflow_that_waits_for_any_other_is_not_started_by_its_own_end(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow("ci", on=[*workflow().triggers, WorkflowCompleteTrigger()]))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    await end_of_ci(rig)
    assert await started(rig) == []
    assert "any but ci" in str((await rig.last_event())["warnings"])


async def test_a_circle_of_ends_stops_with_the_reason(rig: Rig) -> None:
    await listening(rig, WorkflowCompleteTrigger(("ci",)))
    await end_of_ci(rig, chainDepth=MAX_CHAIN_DEPTH)
    assert await started(rig) == []
    event = await rig.last_event()
    assert (event["status"], event["error_message"]) == ("failed", "10 events led to this one: is it a circle?")


def emitted(rig: Rig, number: int, routing_key: str, *, workflow: str = "ci") -> events.NewEvent:
    body = msgspec.json.encode(
        Emitted(
            name="built",
            payload=None,
            repo="local/app",
            provider="internal",
            routing_key=routing_key,
            clone_url="/git/local/app",
            default_branch="main",
            branch="main",
            sha="a" * 40,
            run_id="r",
            job_id="j",
            workflow=workflow,
            job="build",
            chain_depth=1,
        )
    )
    return events.NewEvent(
        id=events.new_id(),
        delivery_id=f"{PROVIDER}:{workflow}:{number}",
        routing_key=routing_key,
        event=PROVIDER,
        action="built",
        provider=PROVIDER,
        headers={"workflow": workflow},
        repo="local/app",
        ref="refs/heads/main",
        content_type="application/json",
        size=len(body),
        sha256="0" * 64,
        body=body,
    )


async def many(rig: Rig, count: int, **options: Any) -> None:
    """Events that came in one minute of the clock."""
    key = (await rig.local_source()).routing_key
    async with rig.pool.acquire() as db:
        await events.insert_batch(db, [emitted(rig, n, key, **options) for n in range(count)])
    await rig.pool.execute("update event_log set received_at = '2026-01-01 12:00:30+00' where provider = $1", PROVIDER)


async def work_off(rig: Rig) -> None:
    """By two coordinators."""
    pipelines = [rig.pipeline, rig.another("coordinator-b")]
    done: list[list[Done]] = [[]]
    while done:
        done = [one for one in await asyncio.gather(*(one.run_once() for one in pipelines)) if one]


async def test_of_many_events_of_a_workflow_only_so_many_a_minute_start_runs(rig: Rig) -> None:
    await listening(rig, KiciEventTrigger("built"))
    await many(rig, MAX_PER_MINUTE + 5)
    await many(rig, 1, workflow="other")
    await work_off(rig)
    rows = await rig.pool.fetch("select * from event_log where provider = $1", PROVIDER)
    assert {row["status"] for row in rows} == {"processed", "failed"}
    refused = [row for row in rows if row["status"] == "failed"]
    assert len(refused) == 5
    assert {row["error_message"] for row in refused} == {
        f"it started nothing: {MAX_PER_MINUTE} events of workflow 'ci' have started runs in this minute (12:00 UTC),"
        " and that is the limit: emit one event with a list, or less often"
    }
    assert len([run for run in await rig.runs() if run["workflow_name"] == "after"]) == MAX_PER_MINUTE + 1


async def test_events_that_start_nothing_do_not_count(rig: Rig) -> None:
    await listening(rig, KiciEventTrigger("other"))
    await many(rig, MAX_PER_MINUTE + 5)
    await work_off(rig)
    rows = await rig.pool.fetch("select distinct status from event_log where provider = $1", PROVIDER)
    assert [row["status"] for row in rows] == ["processed"]


async def test_an_event_of_a_workflow_does_not_pass_for_a_later_push(rig: Rig) -> None:
    """It has the repository and the branch of the run: what the next push registers counts all the same."""
    sha = rig.local.commit({LOCK: lock(workflow("ci"))})
    rig.local.push()
    await rig.push(sha)
    key = (await rig.local_source()).routing_key
    async with rig.pool.acquire() as db:
        await events.insert_batch(db, [emitted(rig, 1, key)])
    await rig.pool.execute("update event_log set next_attempt_at = now() + interval '1 hour' where event = 'push'")
    await rig.done()
    await rig.pool.execute("update event_log set next_attempt_at = now() where event = 'push'")
    await rig.done()
    assert (await rig.pool.fetchval("select count(*) from workflow_registrations")) == 1


async def test_an_operator_may_set_how_many_and_ends_that_events_have_caused_count_as_well(rig: Rig) -> None:
    rig.pipeline = rig.another(settings=Settings(per_minute=2))
    await listening(rig, KiciEventTrigger("built"), WorkflowCompleteTrigger(("ci",)))
    await end_of_ci(rig, chainDepth=1)
    await many(rig, 3)
    await rig.pool.execute("update event_log set received_at = '2026-01-01 12:00:30+00' where provider = 'completion'")
    while await rig.pipeline.run_once():
        pass
    rows = await rig.pool.fetch("select status from event_log where provider in ('completion', $1)", PROVIDER)
    assert sorted(row["status"] for row in rows) == ["failed", "failed", "processed", "processed"]
