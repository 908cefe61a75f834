"""The long proofs, in a short form: `make proofs`."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from tests.support import stack
from tests.support.cut import Cable
from tests.support.relay import port_of
from tests.support.stack import Stack
from tests.system.test_crashes import gated
from tests.system.test_outages import agent

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

CUT_S = 20
ROUNDS = 12
LINES = 2_000

CHAOS = f"""
from kici import Ctx, Retry, job, push, workflow

AGAIN = Retry(5, delay="0.1s")

first = job("first", runs_on="linux", retry_on_infra=AGAIN, steps=["seq 1 {LINES}"])


@job(runs_on="linux", needs=[first], retry_on_infra=AGAIN)
async def second(ctx: Ctx) -> int:
    await ctx.sh("sleep 0.3")
    return 2


ci = workflow("ci", on=push(), jobs=[first, second])
"""


async def test_a_network_cut_of_20_seconds_loses_no_job() -> None:
    """With the default times: silent after 15 s, back before the 120 s of recovery."""
    async with stack.running("--no-agent") as up:
        gate = up.base / "gate"
        async with Cable(port_of(up.url)) as cable, agent(up, f"ws://127.0.0.1:{cable.port}/ws", KICI_SANDBOX="false"):
            run_id = (await up.run_of(await up.push(await up.repository(gated(gate)))))["runId"]
            await up.job(run_id, "gated", "running")
            cable.pull()
            cut = asyncio.get_running_loop().time()
            silent = await up.job(run_id, "gated", "recovering", deadline=30)
            assert "silent" in silent["waitingReason"]
            gate.touch()
            await asyncio.sleep(max(0.0, CUT_S - (asyncio.get_running_loop().time() - cut)))
            cable.mend()
            assert (await up.ended(run_id))["status"] == "success"
            assert {job["attempt"] for job in (await up.jobs(run_id)).values()} == {1}


async def test_pushes_survive_kills_of_every_part() -> None:
    """Every push has one run, every run succeeds, and every log is whole, whatever is killed meanwhile."""
    seed = int(os.environ.get("SEED") or 0) or random.randrange(1, 10**6)
    print(f"chaos seed {seed}: SEED={seed} make proofs repeats the order of the kills")
    dice = random.Random(seed)
    times = {"KICI_HEARTBEAT_S": "1", "KICI_SILENT_S": "3", "KICI_COORDINATOR_LEASE_S": "3"}
    async with stack.running("--slots", "2", **times) as up:
        root = await up.repository(CHAOS)
        shas = []
        for number in range(ROUNDS):
            shas.append(await up.commit(root, f"number {number}"))
            await up.push(root)
            victim = dice.choice(("kici.orchestrator.main", "kici.agent.main", "postgres"))
            await up.run_of(shas[dice.randrange(len(shas))], deadline=90)
            if up.pids(victim):
                up.kill(victim, signal.SIGKILL)
        for sha in shas:
            run = await up.ended((await up.run_of(sha, deadline=90))["runId"], deadline=240)
            jobs = await up.jobs(run["runId"])
            assert run["status"] == "success", f"seed {seed}: {run} {jobs}"
            await whole_log(up, run["runId"], jobs["first"]["jobId"], seed)
        assert sorted(one["sha"] for one in await up.runs()) == sorted(shas)


async def whole_log(up: Stack, run_id: str, job_id: str, seed: int) -> None:
    expected = [str(number) for number in range(1, LINES + 1)]

    async def whole() -> bool | None:
        return await up.log(run_id, job_id, 0) == expected or None

    await up.until(whole, f"the whole log of a step (seed {seed})", 60)
