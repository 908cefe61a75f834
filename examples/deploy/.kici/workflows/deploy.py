"""Test, then staging, then production: each with secrets of its own, one deployment at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kici import Ctx, Job, Rule, concurrency, job, manual, push, rule, step, workflow


@job(runs_on="linux")
async def test(ctx: Ctx) -> None:
    await ctx.sh("python3 -m unittest")


@dataclass
class Release:
    environment: str
    name: str
    signature: str


@step(timeout="10m")
async def put(ctx: Ctx) -> Release:
    """The token is in the environment of this one command, and hidden in all that is logged."""
    name = ctx.git.sha[:12]
    token = {"DEPLOY_TOKEN": ctx.secrets["DEPLOY_TOKEN"]}
    directory = ctx.secrets["DEPLOY_DIR"]
    signature = await ctx.sh("python3 put.py put {directory} {name}", directory=directory, name=name, env=token).text()
    return Release(ctx.environment, name, signature)


@step(retry=3)
async def look(ctx: Ctx) -> None:
    page = Path(ctx.secrets["DEPLOY_DIR"], "current", "index.html")
    if "Shop" not in page.read_text():
        raise RuntimeError(f"{ctx.environment} does not show the shop")


async def go_back(ctx: Ctx) -> None:
    await ctx.sh("python3 put.py back {directory}", directory=ctx.secrets["DEPLOY_DIR"])


@rule("only from main")
async def from_main(ctx: Ctx) -> bool:
    return ctx.git.branch == "main"


def deployment(environment: str, *, after: Job[None], rules: Sequence[Rule] = ()) -> Job[None]:
    """A deployment that runs is finished, those that wait have their turn: nothing is cut off in the middle."""
    return job(
        f"deploy-{environment}",
        runs_on="linux",
        needs=[after],
        rules=rules,
        environment=environment,
        concurrency=concurrency(f"deploy-{environment}", pending="queue"),
        timeout="20m",
        steps=[put, look],
        on_failure=go_back,
    )


staging = deployment("staging", after=test)
production = deployment("production", after=staging, rules=[from_main])

deploy = workflow("deploy", on=[push(branches="main"), manual()], jobs=[test, staging, production])
