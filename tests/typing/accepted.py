"""What authors write, as type checkers see it. Checked by mypy --strict like all our code; never run."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, assert_type

from kici import (
    CacheUse,
    Checkout,
    CommentEvent,
    Ctx,
    DispatchEvent,
    ForkEvent,
    Generator,
    Job,
    JobCompleteEvent,
    JobOptions,
    ManualEvent,
    Output,
    PullRequestEvent,
    Resources,
    Result,
    Retry,
    ReviewCommentEvent,
    Rule,
    StarEvent,
    Step,
    WatchEvent,
    WebhookEvent,
    Workflow,
    WorkflowCompleteEvent,
    WorkflowRunEvent,
    cache,
    changed,
    comment,
    concurrency,
    dispatch,
    generic_webhook,
    hook,
    job,
    jobs,
    kici_event,
    labels,
    lifecycle,
    manual,
    mise,
    parallel,
    pr,
    push,
    registry,
    rule,
    schedule,
    setup,
    skip_if,
    skip_unless,
    step,
    tag,
    uv_sync,
    workflow,
    workflow_complete,
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

# ── rules, hooks, caches, init, groups, jobs that are made ────────────────────────────────────────────────────────────


@rule
async def on_weekdays(ctx: Ctx) -> bool:
    return ctx.event.branch != "weekend"


@rule("has a tag")
def tagged(ctx: Ctx) -> bool:
    return bool(ctx.event.tag)


async def report(ctx: Ctx) -> None:
    if ctx.outcome.status == "failed":
        ctx.annotate("error", ctx.outcome.reason, file="src/app.py", line=1)


@step(
    env={"LEVEL": 3},
    rules=[tagged, skip_if("draft", lambda ctx: not ctx.event.branch)],
    cache=cache("o-{hash:uv.lock}", paths="o"),
    on_cancel=report,
    cleanup="make clean",
)
async def compile_all(ctx: Ctx) -> int:
    return 1


async def packages(ctx: Ctx) -> list[str]:
    return await ctx.sh("ls packages").lines()


careful = job(
    "careful",
    runs_on="linux",
    rules=[on_weekdays, changed("src/**"), skip_unless("asked", lambda ctx: True)],
    init=["make deps", mise(), uv_sync("--all-extras"), setup("npm ci", cache=cache("npm", paths=["~/.npm"]))],
    cache=[cache("deps", paths=["deps"], restore="deps-")],
    steps=["true", compile_all, parallel(count, "make lint", fail_fast=False, max_parallel=2)],
    matrix=packages,
    environment=lambda ctx: "production" if ctx.event.branch == "main" else "staging",
    env=lambda ctx: {"TARGET": ctx.event.branch},
    on_failure=hook(report, timeout="1m"),
    cleanup=report,
    before_step="date",
)


@jobs("sharded", needs=[careful])
async def sharded(ctx: Ctx) -> AsyncIterator[Job[None]]:
    for name in await ctx.sh("ls").lines():
        yield job(name, runs_on="linux", steps=["true"])


@jobs("few", runs_on=["linux", "gpu"], timeout="2m")
def few(ctx: Ctx) -> Iterator[Job[int]]:
    yield job(runs_on="linux")(count)


after_all = job("after", runs_on="linux", needs=[sharded, few.when("always")], steps=["true"])
assert_type(on_weekdays, Rule)
assert_type(sharded, Generator)
assert_type(compile_all, Step[int])
assert_type(careful, Job[None])
many = workflow(
    "many", on=push(), jobs=[careful, sharded, few, after_all], rules=changed("src/**"), cleanup=report, hash_files="x"
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
    assert_type(ctx.fanout.last, bool)
    assert_type(ctx.agent.labels, tuple[str, ...])
    assert_type(await ctx.emit("built", {"version": 1}), str)
    assert_type(await ctx.set_secret_output("TOKEN", "x"), None)
    assert_type(await ctx.wait_for(lambda: re.match("x", "x"), every="1s"), re.Match[str])
    async with ctx.cache("key", ["~/.cache"], restore="k") as found:
        assert_type(found, CacheUse)
        assert_type(found.hit, bool)
    with ctx.cache("key", "dist") as found:
        assert_type(found.matched_key, str)
    ctx.summary("# Done")
    with ctx.group("install"):
        ctx.log.info("hello", size=3)
    if ctx.cancelled:
        return
    await ctx.cancelled


# ── events and inputs ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Inputs:
    target: str
    dry: bool = False


@job(runs_on="linux")
async def answer(ctx: Ctx) -> None:
    if ctx.event.type == "comment":
        said = ctx.event_as(CommentEvent)
        assert_type(said, CommentEvent)
        assert_type(said.body, str)
    request = ctx.event_as(PullRequestEvent)
    assert_type(request.number, int)
    assert_type(ctx.event_as(ReviewCommentEvent).pr_number, int)
    assert_type(ctx.event_as(DispatchEvent).inputs, dict[str, str])
    actions = ctx.event_as(WorkflowRunEvent)
    if actions.action == "completed" and actions.conclusion == "failure":
        assert_type(actions.commit, str)
    assert_type(ctx.event_as(ForkEvent).actor, str)
    assert_type(ctx.event_as(StarEvent).action, Literal["created", "deleted"])
    assert_type(ctx.event_as(WatchEvent).action, Literal["started"])
    assert_type(ctx.event_as(WebhookEvent).payload, Any)
    assert_type(ctx.event_as(ManualEvent).workflow, str)
    assert_type(ctx.event_as(WorkflowCompleteEvent).status, Literal["success", "failed", "cancelled"])
    assert_type(ctx.event_as(JobCompleteEvent).commit, str)
    if request.action == "closed":
        await ctx.sh(t_free)
    inputs = ctx.inputs_as(Inputs)
    assert_type(inputs, Inputs)
    assert_type(inputs.dry, bool)


t_free = "true"
on_everything = workflow(
    "on-everything",
    on=[
        comment(actions="created", body_match=["/deploy *", re.compile("go")]),
        schedule("0 6 * * MON-FRI", tz="Europe/Berlin"),
        kici_event("built", match={"$.ok": True, "$.n": [1, None]}),
        workflow_complete("ci", status=["success", "failed"]),
        lifecycle("job_failed"),
        manual(inputs=Inputs),
    ],
    jobs=[answer],
)

# ── what of the repository a job finds ────────────────────────────────────────────────────────────────────────────────

job("release", runs_on="linux", checkout=Checkout(depth=0, tags=True), steps=["git describe"])
job("app", runs_on="linux", checkout=Checkout(sparse="src/app", submodules=True, lfs=True), steps=["make"])
job("big", runs_on="linux", resources={"cpus": 2, "memory": "4g"}, steps=["make"])
job("wide", runs_on="linux", resources={"requests": {"cpus": 0.5}, "limits": {"memory": 2**32}}, steps=["make"])
job("high", runs_on="linux", resources=Resources(requests={"memory": "1g"}, limits={"memory": "4g"}), steps=["make"])
job("kept", runs_on="linux", sandbox="isolated", steps=["make"])
job("all", runs_on="linux", checkout=Checkout(sparse=("a", "b"), submodules="recursive"), steps=["make"])

workflow(
    "packages", jobs=[job("a", runs_on="linux", steps=["true"])], registries=[registry("https://h/s", token_secret="T")]
)

workflow("few", jobs=[job("a", runs_on="linux", steps=["true"])], permissions={"caches": "read", "events": "write"})
workflow("read", jobs=[job("a", runs_on="linux", steps=["true"])], permissions="read-all")
