"""Workflows that are started by the ends of others, with real processes."""

from __future__ import annotations

from typing import Any

from tests.support.stack import Stack

WORKFLOW = """
from kici import Ctx, JobCompleteEvent, WorkflowCompleteEvent, job, job_complete, lifecycle, push, workflow
from kici import workflow_complete


@job(runs_on="linux")
async def build(ctx: Ctx) -> None:
    if ctx.git.branch == "bad":
        raise RuntimeError("it does not compile")


@job(runs_on="linux")
async def look(ctx: Ctx) -> str:
    ended = ctx.event_as(WorkflowCompleteEvent)
    results = [f"{one['name']} {one['status']}" for one in ctx.payload["jobResults"]]
    return f"{ended.workflow} {ended.status} at {ended.commit[:7]}: {results}"


@job(runs_on="linux")
async def look_at_job(ctx: Ctx) -> str:
    ended = ctx.event_as(JobCompleteEvent)
    return f"{ended.workflow} / {ended.job} {ended.status}: {ctx.payload['error'][:30]}"


@job(runs_on="linux")
async def turn(ctx: Ctx) -> int:
    return 1


ci = workflow("ci", on=push(), jobs=[build])
happy = workflow("happy", on=workflow_complete("ci", status="success"), jobs=[look])
alarm = workflow("alarm", on=workflow_complete("ci", status="failed"), jobs=[look])
repair = workflow("repair", on=lifecycle("job_failed"), jobs=[look_at_job])
"""


async def of_workflow(up: Stack, name: str, count: int = 1) -> list[dict[str, Any]]:
    """The runs of a workflow once there are so many, each ended."""

    async def look() -> list[str] | None:
        found = [run["runId"] for run in await up.runs() if run["workflowName"] == name]
        return found if len(found) >= count else None

    ids = await up.until(look, f"{count} runs of {name}", 60)
    return [await up.ended(run_id) for run_id in ids]


async def output(up: Stack, run: dict[str, Any], name: str) -> Any:
    job = (await up.jobs(run["runId"]))[name]
    assert job["status"] == "success", job
    return job["outputs"][name]


async def test_the_end_of_a_workflow_starts_those_that_wait_for_how_it_ended(up: Stack) -> None:
    root = await up.repository(WORKFLOW)
    sha = await up.push(root)
    (happy,) = await of_workflow(up, "happy")
    assert await output(up, happy, "look") == f"ci success at {sha[:7]}: ['build success']"
    assert happy["triggerEvent"] == "workflow_complete"

    await up.commit(root, "second")
    bad = await up.push(root, "bad")
    (alarm,) = await of_workflow(up, "alarm")
    assert await output(up, alarm, "look") == f"ci failed at {bad[:7]}: ['build failed']"
    assert alarm["sha"] == sha  # the head of the default branch
    (repair,) = await of_workflow(up, "repair")
    assert (await output(up, repair, "look_at_job")).startswith("ci / build failed: ")
    assert len(await of_workflow(up, "happy")) == 1

    preview = await up.kici("preview", "--event", "workflow_complete:failed", "--name", "ci", cwd=root)
    assert "✓ alarm: Matched trigger 1 (workflow_complete)" in preview
    assert "✗ happy" in preview


async def test_a_circle_of_two_workflows_ends_by_itself(up: Stack) -> None:
    circle = """
ping = workflow("ping", on=[push(), workflow_complete("pong")], jobs=[turn])
pong = workflow("pong", on=workflow_complete("ping"), jobs=[turn])
"""
    await up.push(await up.repository(WORKFLOW[: WORKFLOW.index("ci = workflow")] + circle))

    async def stopped() -> list[dict[str, Any]] | None:
        log = (await up.get("/event-log", limit=100))["deliveries"]
        return [one for one in log if "circle" in (one.get("errorMessage") or "")] or None

    (last,) = await up.until(stopped, "the end of the circle", 90)
    assert last["status"] == "failed"
    runs = [run["workflowName"] for run in await up.runs()]
    assert (runs.count("ping"), runs.count("pong")) == (6, 5)
