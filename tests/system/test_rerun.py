"""A run that failed is run again through the command line: what succeeded is not run twice."""

from __future__ import annotations

from tests.support import stack

WORKFLOW = """
import os
from kici import Ctx, job, push, workflow

COUNT = "{count}"


@job(runs_on="linux")
async def build(ctx: Ctx) -> str:
    await ctx.sh("echo built >> {count}/built")
    with open("wheel", "w") as file:
        file.write("the wheel")
    await ctx.artifacts.upload("wheel", ["wheel"])
    return "1.2"


@job(runs_on="linux", needs=[build])
async def deploy(ctx: Ctx) -> None:
    await ctx.artifacts.download("wheel", into="dist")
    await ctx.sh("grep -q 'the wheel' dist/wheel && test -e {count}/open")
    ctx.log.info("deployed", version=ctx.outputs(build))


ci = workflow("ci", on=push(), jobs=[build, deploy])
"""


async def test_what_failed_is_run_again_with_the_outputs_and_artifacts_of_what_succeeded() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        await rerun_what_failed(up)


async def rerun_what_failed(up: stack.Stack) -> None:
    count = up.base / "count"
    count.mkdir()
    count.chmod(0o777)
    root = await up.repository(WORKFLOW.replace("{count}", str(count)))
    first = await up.ended((await up.run_of(await up.push(root)))["runId"])
    assert first["status"] == "failed"

    (count / "open").touch()
    await up.kici("runs", "rerun", first["runId"], "--failed")
    again = next(run for run in await up.runs() if run["triggerEvent"] == "rerun")
    again = await up.ended(again["runId"])
    jobs = await up.jobs(again["runId"])
    assert again["status"] == "success", jobs
    assert (count / "built").read_text() == "built\n"
    assert (jobs["build"]["status"], jobs["build"]["reusedFromRunId"]) == ("success", first["runId"])
    logs = await up.kici("runs", "logs", again["runId"])
    assert "── build / " in logs
    assert "version=1.2" in logs
    shown = await up.kici("runs", "show", again["runId"])
    assert f"reused from run {first['runId'][:8]}" in shown
    assert f"{first['runId']} (rerun: failed)" in shown


GENERATED = """
from kici import Ctx, job, jobs, push, step, workflow


@job(runs_on="linux")
def plan(ctx: Ctx) -> list[str]:
    return ["one", "two"]


def shard(name):
    async def run(ctx: Ctx) -> str:
        await ctx.sh("echo " + name + " >> {count}/ran")
        if name == "two":
            await ctx.sh("test -e {count}/open")
        return name.upper()

    return job(name, runs_on="linux", steps=[step("run", run)])


@jobs("shards", needs=[plan])
def shards(ctx):
    return [shard(name) for name in ctx.outputs(plan)]


@job(runs_on="linux", needs=[shards])
def report(ctx: Ctx) -> list[str]:
    return sorted(dict(one.value)["run"] for one in ctx.outputs_all(shards))


ci = workflow("ci", on=push(), jobs=[plan, shards, report])
"""


async def test_generated_jobs_are_run_again_one_by_one_without_asking_their_generator() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        count = up.base / "count"
        count.mkdir()
        count.chmod(0o777)
        root = await up.repository(GENERATED.replace("{count}", str(count)))
        first = await up.ended((await up.run_of(await up.push(root)))["runId"])
        assert first["status"] == "failed", await up.jobs(first["runId"])
        assert sorted((count / "ran").read_text().split()) == ["one", "two"]

        (count / "open").touch()
        reused = {"plan", "init: shards"}
        second = await run_again(up, first["runId"], "--failed", reused=reused | {"one"})
        assert sorted((count / "ran").read_text().split()) == ["one", "two", "two"]
        third = await run_again(up, second, "--job", "one", reused=reused | {"two"})
        assert sorted((count / "ran").read_text().split()) == ["one", "one", "two", "two"]
        await run_again(up, third, "--job", "shards", reused={"plan"})
        assert sorted((count / "ran").read_text().split()) == ["one", "one", "one", "two", "two", "two"]


async def run_again(up: stack.Stack, run_id: str, *how: str, reused: set[str]) -> str:
    """Everything but `reused` runs again, successfully. Returns the new run's id."""
    await up.kici("runs", "rerun", run_id, *how)
    again = next(run["runId"] for run in await up.runs() if run["parentRunId"] == run_id)
    ended = await up.ended(again)
    jobs = await up.jobs(again)
    assert ended["status"] == "success", jobs
    assert jobs.keys() == {"plan", "init: shards", "one", "two", "report"}
    assert {name for name, job in jobs.items() if job["reusedFromRunId"]} == reused
    assert jobs["report"]["outputs"]["report"] == ["ONE", "TWO"]
    return str(again)
