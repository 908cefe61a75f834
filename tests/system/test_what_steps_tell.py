"""Annotations, summaries, secret outputs, events, caches and rules, from the author's line to what a person sees."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.stack import Stack

VALUE = "tok-9f8e7d6c5b4a3210"
WORKFLOW = """
import base64

from kici import Ctx, job, push, rule, step, workflow


@step
async def check(ctx: Ctx) -> None:
    async with ctx.cache("deps-1", "deps", restore="deps-") as found:
        ctx.log.info("cache", hit=found.hit, key=found.matched_key)
        await ctx.sh("mkdir -p deps && date > deps/made && cat deps/made")
    ctx.annotate("warning", "unused import", file="src/app.py", line=7)
    ctx.summary("## Checked\\n")
    await ctx.sh('echo "by the shell" >> "$KICI_SUMMARY"')


@step
async def sign_in(ctx: Ctx) -> str:
    token = base64.b64decode("dG9rLTlmOGU3ZDZjNWI0YTMyMTA=").decode()
    await ctx.set_secret_output("RELEASE_TOKEN", token)
    print("the token is", token)
    ctx.annotate("notice", f"signed in with {token}")
    return f"not {token}"


build = job("build", runs_on="linux", steps=[check, sign_in])


@job(runs_on="linux", needs=[build])
async def publish(ctx: Ctx) -> None:
    token = ctx.secrets["RELEASE_TOKEN"]
    print("published with", token, len(token))
    event = await ctx.emit("published", {"branch": ctx.git.branch, "token": token})
    print("event", event)


@rule("only on release branches")
def on_release(ctx: Ctx) -> bool:
    return ctx.git.branch.startswith("release/")


@job(runs_on="linux", rules=[on_release])
async def announce(ctx: Ctx) -> None:
    raise AssertionError("nobody wants this")


ci = workflow("ci", on=push(), jobs=[build, publish, announce])
"""


async def test_what_steps_tell_comes_where_it_belongs(up: Stack) -> None:
    root = await up.repository(WORKFLOW)
    run = await up.ended((await up.run_of(await up.push(root)))["runId"])
    jobs = await up.jobs(run["runId"])
    assert run["status"] == "success", jobs

    check, sign_in = (step for step in jobs["build"]["steps"] if step["stepIndex"] >= 0)
    assert check["annotations"] == [
        {"level": "warning", "message": "unused import", "file": "src/app.py", "line": 7},
    ]
    assert check["summary"] == "## Checked\nby the shell\n"
    assert sign_in["annotations"][0]["message"] == "signed in with ***"
    assert jobs["build"]["outputs"]["sign_in"] == "not ***"
    assert f"published with *** {len(VALUE)}" in "\n".join(await up.log(run["runId"], jobs["publish"]["jobId"], 0))

    assert jobs["announce"]["status"] == "skipped"
    assert "only on release branches" in jobs["announce"]["errorMessage"]
    assert {step["status"] for step in jobs["announce"]["steps"] if step["stepIndex"] >= 0} == {"skipped"}

    shown = await up.kici("runs", "show", run["runId"])
    assert "warning  src/app.py:7  unused import" in shown
    assert "## Checked\nby the shell" in shown
    assert "only on release branches" in shown
    everything = shown + json.dumps(jobs) + await up.kici("runs", "logs", run["runId"])
    assert VALUE not in everything
    assert VALUE not in up.logs()

    (event,) = [one for one in (await up.get("/event-log"))["deliveries"] if one["event"] == "kici_event"]
    assert event["action"] == "published"
    assert event["deliveryId"].startswith(f"kici_event:{jobs['publish']['jobId']}:")

    await again(up, root)


async def again(up: Stack, root: Path) -> None:
    """A later run of the repository finds the cache of the first."""
    await up.commit(root, "second")
    run = await up.ended((await up.run_of(await up.push(root)))["runId"])
    jobs = await up.jobs(run["runId"])
    assert run["status"] == "success", jobs
    log = "\n".join(await up.log(run["runId"], jobs["build"]["jobId"], 0))
    assert "key=deps-1" in log
    listed = json.loads(await up.run_admin("caches", "list", "--json"))["caches"]
    assert [(one["key"], one["scope"]) for one in listed] == [("deps-1", "")]
