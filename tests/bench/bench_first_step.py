"""From a push to the first step: `webhook_to_step_ms`, beside the least that brings a commit into a sandbox.

The value: a signed delivery of the local repository is sent, and the time until the first step of the job has started
on a connected agent, by the step's own `startedAt` (whole milliseconds, same clock). The floor, in turn with it: plain
git fetches one other commit of the same repository over the same HTTP address and checks it out, then bubblewrap
starts `true`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
import uuid
from datetime import datetime
from pathlib import Path

from kici.agent.git import basic
from kici.agent.sandbox.bubblewrap import find_bwrap
from kici.forges.local import delivery
from kici.forges.local.hook_files import HookConfig, read_config
from tests.bench.harness import Result, compare
from tests.support import stack
from tests.support.stack import Stack

NAMES = ("webhook_to_step_ms",)
WARM_UP = 3
SAMPLES = 25
WORKFLOW = """
from kici import job, push, workflow

ci = workflow("ci", on=push(branches="main"), jobs=[job("only", runs_on="linux", steps=["true"])])
"""
BOX = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--ro-bind", "/", "/"),
    *("--proc", "/proc", "--dev", "/dev", "--", "true"),
)


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with stack.running_on_disk(KICI_SANDBOX="auto") as up:
        root = await up.repository(WORKFLOW, files={"src/main.py": "print('hello')\n"})
        commits = [await up.commit(root, f"commit {number}") for number in range(2 * (WARM_UP + SAMPLES))]
        bare = Path(up.remote)
        # Fetched, not pushed: the hook must not run.
        await up.run("git", "-C", str(bare), "fetch", "-q", str(root), "HEAD:refs/heads/prepared")
        await up.until(lambda: _agents(up), "a connected agent", 30)
        hook = read_config(bare)
        token = up.http.headers["Authorization"].removeprefix("Bearer ")
        values, floors = [], []
        for number in range(WARM_UP + SAMPLES):
            ours, theirs = commits[2 * number], commits[2 * number + 1]
            floor = await asyncio.to_thread(fetch_and_box, up, hook, token, theirs)
            value = await push_to_step(up, hook, ours)
            if number >= WARM_UP:
                floors.append(floor)
                values.append(value)
    return [compare("webhook_to_step_ms", values, "git fetch + checkout + bwrap true", floors, limit=3)]


async def _agents(up: Stack) -> bool | None:
    return bool((await up.get("/agents"))["agents"]) or None


async def push_to_step(up: Stack, hook: HookConfig, sha: str) -> float:
    """Milliseconds from sending the delivery to the first step's start. The job has ended when this returns."""
    body = json.dumps(
        {
            "repository": hook.repository,
            "default_branch": "main",
            "ref": "refs/heads/main",
            "before": "0" * 40,
            "after": sha,
            "commit": sha,
            "message": "bench",
            "pusher": "bench",
            "changed_files": None,
        }
    ).encode()
    headers = delivery.headers(uuid.uuid4().hex) | {delivery.SIGNATURE: delivery.signature(hook.secret.encode(), body)}
    sent = time.time()
    answer = await up.http.post(hook.url, content=body, headers=headers)
    answer.raise_for_status()
    # Looked at only when it is over, so that looking does not slow it down.
    await asyncio.sleep(0.3)
    run = await up.run_of(sha)
    ended = await up.ended(run["runId"])
    if ended["status"] != "success":
        raise RuntimeError(f"the run ended as {ended['status']}: {ended}")
    # The preparation is a step too, with the index -1: it is part of what is measured.
    step = next(step for step in (await up.jobs(run["runId"]))["only"]["steps"] if step["stepIndex"] == 0)
    return (datetime.fromisoformat(step["startedAt"]).timestamp() - sent) * 1_000


def fetch_and_box(up: Stack, hook: HookConfig, token: str, sha: str) -> float:
    """Milliseconds for one commit in a new repository and `true` in a sandbox."""
    directory = Path(tempfile.mkdtemp(prefix="floor-", dir=up.base))
    url = f"{up.url}/git/{hook.repository}"
    env = up.env | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{up.url}/.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: {basic('kici', token)}",
        "GIT_TERMINAL_PROMPT": "0",
    }

    def call(*argv: str) -> None:
        done = subprocess.run(argv, cwd=directory, env=env, check=False, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{argv[0]} {argv[1]} failed: {done.stderr.decode()}")

    try:
        call("git", "init", "-q", ".")
        started = time.perf_counter()
        call("git", "fetch", "-q", "--depth=1", "--no-tags", url, sha)
        call("git", "checkout", "-q", "--detach", sha)
        call(find_bwrap(), *BOX)
        return (time.perf_counter() - started) * 1_000
    finally:
        shutil.rmtree(directory)
