"""Dynamic options and generators end through a coordinator and an agent as they end on `kici run local`."""

from __future__ import annotations

import asyncio

from tests.support.stack import Stack
from tests.system.test_same_here_and_there import _here, _there

WORKFLOWS = """
from kici import Ctx, job, jobs, push, step, workflow

# ── a matrix over directories ──────────────────────────────────────────────────────────────────────────────────────

async def directories(ctx):
    return {"package": await ctx.sh("ls packages").lines()}

@job(runs_on="linux", matrix=directories, env=lambda ctx: {"KIND": "{" + ctx.event.type + "}"},
     concurrency=lambda ctx: "one-" + ctx.git.branch, max_parallel=1, timeout="40s")
async def test(ctx: Ctx) -> str:
    return await ctx.sh("cat packages/{p}/NAME; echo -n $KIND", p=ctx.matrix.package).text()

@job(runs_on="linux", needs=[test])
def report(ctx: Ctx) -> dict[str, str]:
    return {one.name: one.value for one in ctx.outputs_all(test)}

directories_ = workflow("directories", on=push(), jobs=[test, report])

# ── jobs made of what another job returned ─────────────────────────────────────────────────────────────────────────

@job(runs_on="linux")
def plan(ctx: Ctx) -> dict[str, int]:
    return {"one": 1, "two": 2}

def shard(name, number):
    @step
    def count(ctx: Ctx) -> int:
        return number * 10

    @step(retry=2)
    def double(ctx: Ctx) -> int:
        return ctx.outputs(count) * 2

    return job(name, runs_on="linux", steps=["echo " + name, count, double], env={"WHO": "{job}"})

@jobs("shards", needs=[plan])
async def shards(ctx):
    assert "README.md" in await ctx.sh("ls").lines()
    for name, number in ctx.outputs(plan).items():
        yield shard(name, number)
    yield job("collect", runs_on="linux", needs=["one", "two"], matrix=lambda ctx: ["x", "y"],
              steps=[step("sum", lambda ctx: ctx.outputs("double", job="one") + ctx.outputs("double", job="two"))])
    yield job("never", runs_on="linux", needs=["missing"], steps=["true"]) if ctx.git.branch == "bad" else \\
        job("bad", runs_on="linux", steps=["exit 3"])

@job(runs_on="linux", needs=[shards.when("always")])
def total(ctx: Ctx) -> dict[str, str]:
    return {one.name: f"{one.status} {dict(one.value) if one.status == 'success' else None}"
            for one in ctx.outputs_all(shards)}

generated = workflow("generated", on=push(), jobs=[plan, shards, total])

# ── what can go wrong ──────────────────────────────────────────────────────────────────────────────────────────────

def after(name, generator):
    return job("after", runs_on="linux", needs=[generator], steps=["true"])

@jobs("nothing")
def nothing(ctx):
    return []

empty = workflow("empty", on=push(), jobs=[nothing, after("empty", nothing)])

@jobs("raises")
def raises(ctx):
    raise ValueError("no idea")

raising = workflow("raising", on=push(), jobs=[raises, after("raising", raises)])

@jobs("many")
def many(ctx):
    return [job(f"j{n}", runs_on="linux", steps=["true"]) for n in range(101)]

too_many = workflow("too-many", on=push(), jobs=[many, after("too-many", many)])

@jobs("wrong")
def wrong(ctx):
    yield job("x", runs_on="linux", needs=["nope"], steps=["true"])

impossible = workflow("impossible", on=push(), jobs=[wrong, after("impossible", wrong)])

def drifting(again):
    @jobs("drifts")
    def drifts(ctx):
        if ctx.job.name == "init: drifts":
            return [job("one", runs_on="linux", steps=["true"])]
        return again()
    return drifts

gone = workflow("gone", on=push(), jobs=[drifting(lambda: [])])
changed = workflow("changed", on=push(), jobs=[drifting(lambda: [job("one", runs_on="linux", steps=["false"])])])
"""


async def test_what_only_running_code_can_tell_is_the_same_here_and_there(up: Stack) -> None:
    files = {"README.md": "x\n", "packages/api/NAME": "api", "packages/web/NAME": "web"}
    root = await up.repository(WORKFLOWS, files=files)
    sha = await up.push(root)
    here, there = await asyncio.gather(_here(up, root), _there(up, sha, 8))
    assert here.keys() == there.keys()
    for name in here:
        assert here[name] == there[name]
    found = {name: {job: one["status"] for job, one in run["jobs"].items()} for name, run in there.items()}
    assert found == {
        "directories": {
            "init: test": "success", "test (api)": "success", "test (web)": "success", "report": "success",
        },
        "generated": {
            "plan": "success", "init: shards": "success", "one": "success", "two": "success",
            "collect (x)": "success", "collect (y)": "success", "bad": "failed", "total": "success",
        },
        "empty": {"init: nothing": "success", "after": "success"},
        "raising": {"init: raises": "failed", "raises": "skipped", "after": "skipped"},
        "too-many": {"init: many": "failed", "many": "skipped", "after": "skipped"},
        "impossible": {"init: wrong": "success", "wrong": "failed", "after": "skipped"},
        "gone": {"init: drifts": "success", "one": "drift_dropped"},
        "changed": {"init: drifts": "success", "one": "failed"},
    }  # fmt: skip
    assert there["directories"]["jobs"]["report"]["outputs"] == {
        "report": {"test (api)": "api{push}", "test (web)": "web{push}"}
    }
    assert there["generated"]["jobs"]["total"]["outputs"]["total"]["two"] == "success {'count': 20, 'double': 40}"
    await _rerun_takes_what_was_made(up, sha)


async def _rerun_takes_what_was_made(up: Stack, sha: str) -> None:
    run = next(one for one in await up.runs(sha) if one["workflowName"] == "generated")
    await up.kici("runs", "rerun", run["runId"], "--failed")

    async def again() -> str | None:
        found = await up.runs(sha)
        return next((one["runId"] for one in found if one["triggerEvent"] == "rerun"), None)

    ended = await up.ended(await up.until(again, "the rerun", 30))
    jobs = await up.jobs(ended["runId"])
    assert {name: bool(job["reusedFromRunId"]) for name, job in jobs.items()} == {
        "plan": True, "init: shards": True, "one": True, "two": True,
        "collect (x)": True, "collect (y)": True, "bad": False, "total": False,
    }  # fmt: skip
    assert (jobs["one"]["status"], jobs["bad"]["status"], jobs["total"]["status"]) == ("success", "failed", "success")
    assert jobs["total"]["outputs"]["total"]["two"] == "success {'count': 20, 'double': 40}"
    refused = await up.kici("runs", "rerun", run["runId"], "--job", "nope", check=False)
    assert "the run has no job 'nope'; it has: plan, init: shards, shards, total" in refused
