"""Three workflows: `ci` tells of what it built, `announce` waits for that, and `follow-up` for the end of `ci`."""

from __future__ import annotations

from dataclasses import dataclass

from kici import (
    Ctx,
    KiciEvent,
    WorkflowCompleteEvent,
    job,
    kici_event,
    push,
    step,
    workflow,
    workflow_complete,
)


@dataclass
class Package:
    name: str
    version: str


@step
async def build(ctx: Ctx) -> Package:
    return Package("greet", await ctx.sh("cat VERSION").text())


@step
async def tell(ctx: Ctx) -> None:
    package = ctx.outputs(build)
    await ctx.emit("built", {"package": package.name, "version": package.version})


package = job("package", runs_on="linux", steps=[build, tell])
ci = workflow("ci", on=push(branches="main"), jobs=[package])


@job(runs_on="linux")
async def write_news(ctx: Ctx) -> str:
    event = ctx.event_as(KiciEvent)
    # Whoever emits decides what is in it: an event that is made up for a local run has only what `match` wants.
    version = event.payload.get("version", "a new version")
    await ctx.sh("echo {news} >> NEWS", news=f"{event.payload['package']} {version}")
    return f"{event.payload['package']} is there"


announce = workflow("announce", on=kici_event("built", match={"$.package": "greet"}), jobs=[write_news])


@job(runs_on="linux")
async def look_back(ctx: Ctx) -> str:
    ended = ctx.event_as(WorkflowCompleteEvent)
    return f"{ended.workflow}: {ended.status}"


follow_up = workflow("follow-up", on=workflow_complete("ci", status="success"), jobs=[look_back])
