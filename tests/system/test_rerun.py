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
