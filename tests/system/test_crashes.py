"""Nothing is lost by a SIGKILL: every event has exactly one run, and every job ends once with the right status."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from pathlib import Path

from tests.support import stack
from tests.support.stack import Stack

ORCHESTRATOR = "kici.orchestrator.main"
AGENT = "kici.agent.main"

GATED = """
from kici import Ctx, job, push, workflow

@job(runs_on="linux")
async def gated(ctx: Ctx) -> str:
    await ctx.sh("echo before; while ! test -e {gate}; do sleep 0.05; done; echo after", gate=GATE)
    return "through"

@job(runs_on="linux", needs=[gated])
async def next_one(ctx: Ctx) -> None:
    ctx.log.info(f"needed: {ctx.outputs(gated)}")

ci = workflow("ci", on=push(), jobs=[gated, next_one])
"""


def gated(gate: Path) -> str:
    return f"GATE = {str(gate)!r}\n{GATED}"


async def gated_run(up: Stack, gate: Path) -> str:
    """A run whose first job is in its step, waiting for the gate."""
    sha = await up.push(await up.repository(gated(gate)))
    run_id: str = (await up.run_of(sha))["runId"]
    job = await up.job(run_id, "gated", "running")

    async def begun() -> bool | None:
        return "before" in await up.log(run_id, job["jobId"], 0) or None

    await up.until(begun, "the step's first line", 30)
    return run_id


def gate_of(up: Stack) -> Path:
    """In a directory that every sandbox sees: the jobs run without one here."""
    return up.base / "gate"


async def test_the_orchestrator_killed_while_a_job_runs_loses_nothing() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        run_id = await gated_run(up, gate_of(up))
        up.kill(ORCHESTRATOR)
        gate_of(up).touch()
        run = await up.ended(run_id)
        jobs = await up.jobs(run_id)
        assert run["status"] == "success", jobs
        assert jobs["gated"]["attempt"] == 1
        assert jobs["gated"]["outputs"] == {"gated": "through"}
        assert await up.log(run_id, jobs["gated"]["jobId"], 0) == ["before", "after"]


async def test_the_orchestrator_killed_while_a_job_is_queued_loses_nothing() -> None:
    async with stack.running("--no-agent") as up:
        sha = await up.push(await up.repository(gated(gate_of(up))))
        run_id = (await up.run_of(sha))["runId"]
        job = await up.job(run_id, "gated", "queued")
        assert "no agent is connected" in job["waitingReason"]
        assert "no agent is connected" in await up.kici("runs", "show", run_id)
        up.kill(ORCHESTRATOR)
        assert (await up.job(run_id, "gated", "queued"))["attempt"] == 0
        assert len(await up.runs()) == 1


async def test_the_orchestrator_killed_before_the_run_is_made_makes_it_once_afterwards() -> None:
    """Deliveries keep coming while it is killed again and again, so that some kills fall between commit and run."""
    async with stack.running("--no-agent") as up:
        root = await up.repository(gated(gate_of(up)))
        shas = []
        for number in range(12):
            shas.append(await up.commit(root, f"number {number}"))
            await up.push(root)
            if number % 2:
                up.kill(ORCHESTRATOR)
        for sha in shas:
            await up.run_of(sha, deadline=60)
        assert sorted(run["sha"] for run in await up.runs()) == sorted(shas)


async def test_the_orchestrator_killed_while_the_last_log_chunks_come_keeps_the_log_whole() -> None:
    lines = 20_000
    workflow = (
        "from kici import job, push, workflow\n"
        f"noisy = job('noisy', runs_on='linux', steps=['seq 1 {lines}'])\n"
        "ci = workflow('ci', on=push(), jobs=[noisy])\n"
    )
    async with stack.running() as up:
        sha = await up.push(await up.repository(workflow))
        run_id = (await up.run_of(sha))["runId"]
        job_id = (await up.jobs(run_id))["noisy"]["jobId"]

        async def some() -> bool | None:
            return len(await up.log(run_id, job_id, 0)) > 0 or None

        await up.until(some, "the first lines", 30)
        up.kill(ORCHESTRATOR)
        assert (await up.ended(run_id))["status"] == "success"

        async def whole() -> bool | None:
            return len(await up.log(run_id, job_id, 0)) >= lines or None

        await up.until(whole, "the whole log", 30)
        assert await up.log(run_id, job_id, 0) == [str(number) for number in range(1, lines + 1)]


async def test_postgres_killed_under_webhook_load_keeps_every_delivery_that_got_its_202() -> None:
    async with stack.running("--no-agent") as up:
        (up.base / "secret").write_text("hush")
        await up.run_admin("source", "add", "github", "--name", "load", "--secret-file", str(up.base / "secret"))
        accepted: list[str] = []
        refused: list[int] = []

        async def deliver(number: int) -> None:
            body = json.dumps({"zen": str(number)}).encode()
            signature = hmac.new(b"hush", body, hashlib.sha256).hexdigest()
            headers = {
                "x-hub-signature-256": f"sha256={signature}",
                "x-github-event": "ping",
                "x-github-delivery": f"d{number}",
            }
            answer = await up.http.post(f"{up.url}/webhook/load", content=body, headers=headers)
            if answer.status_code == 202:
                accepted.append(f"d{number}")
            else:
                refused.append(answer.status_code)

        async def sender(start: int) -> None:
            for number in range(start, start + 60):
                await deliver(number)

        senders = [asyncio.create_task(sender(start)) for start in range(0, 960, 60)]
        await up.until(lambda: _more_than(accepted, 100), "some deliveries", 30)
        up.kill("postgres")
        await asyncio.gather(*senders)
        assert set(refused) <= {503}

        async def recovered() -> bool | None:
            before = len(accepted)
            await deliver(10_000 + len(refused))
            return len(accepted) > before or None

        await up.until(recovered, "the database to be back", 30)
        stored: set[str] = set()
        total = (await up.get("/event-log", limit=1))["total"]
        for offset in range(0, total, 200):
            page = (await up.get("/event-log", limit=200, offset=offset))["deliveries"]
            stored |= {one["deliveryId"].rpartition(":")[2] for one in page}
        assert set(accepted) <= stored


async def _more_than(found: list[str], count: int) -> bool | None:
    return len(found) > count or None


async def test_postgres_stopped_and_started_re_queues_no_job() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        run_id = await gated_run(up, gate_of(up))
        up.kill("postgres")
        gate_of(up).touch()
        assert (await up.ended(run_id))["status"] == "success"
        assert {job["attempt"] for job in (await up.jobs(run_id)).values()} == {1}


async def test_a_killed_agent_loses_its_job_with_a_reason_at_once() -> None:
    """It is started again and says that it does not have the job; user code had begun, so it is not repeated."""
    async with stack.running(KICI_SANDBOX="false") as up:
        run_id = await gated_run(up, gate_of(up))
        up.kill(AGENT)
        run = await up.ended(run_id, deadline=30)
        jobs = await up.jobs(run_id)
        assert (run["status"], jobs["gated"]["status"], jobs["next_one"]["status"]) == (
            "failed",
            "infra_lost",
            "skipped",
        )
        assert "agent" in jobs["gated"]["errorMessage"]


async def test_a_killed_agent_has_its_job_repeated_where_the_author_allows_it() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        workflow = gated(gate_of(up)).replace('@job(runs_on="linux")', '@job(runs_on="linux", retry_on_infra=2)')
        sha = await up.push(await up.repository(workflow))
        run_id = (await up.run_of(sha))["runId"]
        job = await up.job(run_id, "gated", "running")

        async def begun() -> bool | None:
            return "before" in await up.log(run_id, job["jobId"], 0) or None

        await up.until(begun, "the step's first line", 30)
        up.kill(AGENT)
        gate_of(up).touch()
        assert (await up.ended(run_id))["status"] == "success"
        assert (await up.jobs(run_id))["gated"]["attempt"] == 2


async def test_a_killed_runner_fails_its_job_and_says_how() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        run_id = await gated_run(up, gate_of(up))
        up.kill("kici.runner")
        assert (await up.ended(run_id))["status"] == "failed"
        assert "SIGKILL" in (await up.jobs(run_id))["gated"]["errorMessage"]


async def test_cancelling_a_run_ends_its_processes() -> None:
    async with stack.running(KICI_SANDBOX="false") as up:
        run_id = await gated_run(up, gate_of(up))
        await up.kici("runs", "cancel", run_id)
        assert (await up.ended(run_id))["status"] == "cancelled"
        jobs = await up.jobs(run_id)
        assert (jobs["gated"]["status"], jobs["next_one"]["status"]) == ("cancelled", "cancelled")
        assert up.pids(str(gate_of(up))) == []
