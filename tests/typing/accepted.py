"""What authors write, as type checkers see it. Checked by mypy --strict like all our code; never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from kici import (
    Ctx,
    Job,
    JobOptions,
    Output,
    Result,
    Retry,
    Step,
    Workflow,
    concurrency,
    dispatch,
    generic_webhook,
    job,
    labels,
    manual,
    pr,
    push,
    step,
    tag,
    workflow,
)

# ── the example of the documentation ──────────────────────────────────────────────────────────────────────────────────


@job(runs_on="linux")
async def lint(ctx: Ctx) -> None:
    await ctx.sh("ruff check .")


@dataclass
class Wheel:
    version: str
    path: str


@step(timeout="5m", retry=2)
async def build_wheel(ctx: Ctx) -> Wheel:
    version = await ctx.sh("git describe --tags").text()
    await ctx.sh("uv build --out-dir dist")
    return Wheel(version, f"dist/app-{version}.whl")


@step
async def upload(ctx: Ctx) -> None:
    wheel = ctx.outputs(build_wheel)
    assert_type(wheel, Wheel)
    await ctx.artifacts.upload(f"wheel-{ctx.matrix.python}", [wheel.path])


build = job(
    "build",
    runs_on="linux",
    needs=[lint],
    matrix={"python": ["3.11", "3.13"]},
    steps=["uv sync --locked", build_wheel, upload],
)


@job(runs_on="linux", needs=[build], environment="production", concurrency="deploy-{branch}", timeout="20m")
async def deploy(ctx: Ctx) -> None:
    token = ctx.secrets["DEPLOY_TOKEN"]
    await ctx.sh("./deploy.sh --ref {ref}", ref=ctx.git.ref, env={"TOKEN": token})


ci = workflow("ci", on=[push(branches="main"), pr(paths=["src/**", "!**/*.md"])], jobs=[lint, build, deploy])

assert_type(lint, Job[None])
assert_type(build_wheel, Step[Wheel])
assert_type(upload, Step[None])
assert_type(build, Job[None])
assert_type(ci, Workflow)

# ── every way to make a step and a job ────────────────────────────────────────────────────────────────────────────────


def count(ctx: Ctx) -> int:
    return len(ctx.sh("ls").lines().run())


async def names(ctx: Ctx) -> list[str]:
    return await ctx.sh("ls").lines()


@step
def blocking(ctx: Ctx) -> dict[str, int]:
    assert_type(ctx.sh("true").run(), Result)
    assert_type(ctx.sh("cat x.json").json(Wheel).run(), Wheel)
    assert_type(ctx.artifacts.download("wheel").run(), list[str])
    return {}


@job(
    runs_on=["linux", re.compile("gpu")],
    needs=[build.when("always"), "lint"],
    priority=2,
    max_parallel=2,
    fail_fast=True,
)
def version(ctx: Ctx) -> str:
    return "1"


assert_type(step(count), Step[int])
assert_type(step(names), Step[list[str]])
assert_type(step("count", count, timeout=timedelta(minutes=1)), Step[int])
assert_type(
    step("names", names, retry=Retry(3, delay="2s", when=lambda error: isinstance(error, OSError))), Step[list[str]]
)
assert_type(step("make", "make all", continue_on_error=True), Step[None])
assert_type(step("make", "make all", working_directory="packages/app", shell="sh"), Step[None])
assert_type(blocking, Step[dict[str, int]])
assert_type(version, Job[str])
assert_type(job(runs_on=labels("linux", "web-*", not_=[re.compile("slow")]))(count), Job[int])

common: JobOptions = {"runs_on": "linux", "timeout": 60, "env": {"CI": True, "LEVEL": 3}}
shards = [job(f"shard-{n}", steps=[count, names, blocking], **common) for n in range(3)]
assert_type(shards, list[Job[None]])

release = workflow(
    "release",
    on=[tag("v*"), dispatch(types="deploy"), generic_webhook("registry", events=["pushed"]), manual()],
    jobs=[*shards, version],
    concurrency=concurrency("release", pending="queue"),
    env={"STAGE": "{branch}"},
)

# ── ctx ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@step
async def everything(ctx: Ctx) -> None:
    assert_type(await ctx.sh("true"), Result)
    assert_type(await ctx.sh(["git", "status"], cwd="src", check=False), Result)
    assert_type(await ctx.sh("cat {file}", file="a b").text(), str)
    assert_type(await ctx.sh("test -e x").ok(), bool)
    assert_type(await ctx.sh("cat x.json").json(), Any)
    assert_type(await ctx.sh("cat x.json").json(list[int]), list[int])
    assert_type(ctx.outputs(build_wheel, job=build), Wheel)
    assert_type(ctx.outputs(version), str)
    assert_type(ctx.outputs("names"), Any)
    assert_type(ctx.outputs_all(build_wheel), list[Output[Wheel]])
    assert_type([one.value for one in ctx.outputs_all(version)], list[str])
    assert_type(ctx.needs[build].status, str)
    assert_type([instance.matrix.python for instance in ctx.needs["build"]], list[str])
    assert_type(ctx.secrets, Mapping[str, str])
    assert_type(ctx.secrets.get("TOKEN"), str | None)
    assert_type(ctx.event.pr_number, int)
    assert_type(ctx.event.changed_files, tuple[str, ...] | None)
    with ctx.group("install"):
        ctx.log.info("hello", size=3)
    if ctx.cancelled:
        return
    await ctx.cancelled
