"""Runs of an example through a coordinator and an agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.examples.compare import JobEnd, RunEnd
from tests.examples.copy import Copy, Failed
from tests.examples.expectation import Example, Run
from tests.support import stack
from tests.support.stack import Stack

APPEARS_S = 30
RUN_S = 120


@asynccontextmanager
async def running(example: Example) -> AsyncIterator[Stack]:
    async with stack.running("--slots", "2", **example.agent_env) as up:
        yield up


async def run(up: Stack, copy: Copy, wanted: Run) -> RunEnd:
    """Push, tag or start as it says, and wait for the end."""
    if not await copy.run("git", "remote"):
        await copy.run("git", "remote", "add", "kici", up.remote)
        await copy.run("git", "push", "-q", "kici", "HEAD:main")  # its message asks for no run
    sha = await copy.change(wanted)
    if wanted.event in ("push", "kici_event", "workflow_complete"):
        await copy.run("git", "push", "-q", "kici", f"HEAD:{wanted.ref}")
        run_id = await _run_of(up, sha, wanted)
    elif wanted.event == "tag":
        await copy.run("git", "tag", "--force", wanted.ref)
        await copy.run("git", "push", "-q", "kici", f"refs/tags/{wanted.ref}")
        run_id = await _run_of(up, sha, wanted)
    elif wanted.event == "manual":
        await copy.run("git", "push", "-q", "kici", f"HEAD:{wanted.ref}")
        inputs = [f"--input={name}={value}" for name, value in wanted.inputs.items()]
        said = await up.kici("runs", "start", wanted.workflow, "--ref", wanted.ref, "--json", *inputs)
        run_id = json.loads(said)["runId"]
    else:
        raise Failed(f'nothing sends a {wanted.event} to an agent yet: say where = ["here"] for this run')
    return await _end(up, run_id)


async def _run_of(up: Stack, sha: str, wanted: Run) -> str:
    async def look() -> str | None:
        return next((one["runId"] for one in await up.runs(sha) if one["workflowName"] == wanted.workflow), None)

    return await up.until(look, f"a run of {wanted.workflow} for the {wanted.event}", APPEARS_S)


async def _end(up: Stack, run_id: str) -> RunEnd:
    ended = await up.ended(run_id, RUN_S)
    jobs = {name: _job(job) for name, job in (await up.jobs(run_id)).items()}
    kept = (await up.get(f"/runs/{run_id}/artifacts"))["artifacts"]
    return RunEnd(ended["status"], jobs, tuple(one["name"] for one in kept))


def _job(job: dict[str, Any]) -> JobEnd:
    steps = {step["stepName"]: step["status"] for step in job["steps"]}
    return JobEnd(job["status"], job.get("errorMessage") or "", job.get("outputs") or {}, steps)
