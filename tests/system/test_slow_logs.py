"""A database that does not take logs slows down the step that writes them: no heartbeat, no status, no line is lost."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

import asyncpg

from tests.support import stack
from tests.support.agent_process import rss_mb
from tests.support.stack import Stack

LINES = 200_000
"""About 17 MB that hardly compress: four times what an agent buffers for a job."""
NOISY = """
import base64, hashlib
from pathlib import Path
from kici import Ctx, job, push, workflow

@job(runs_on="linux")
async def noisy(ctx: Ctx) -> None:
    print("here it comes", flush=True)
    await ctx.sh("until test -e {gate}; do sleep 0.02; done", gate=f"{BASE}/noisy")
    progress = Path(BASE, "progress")
    for number in range(LINES):
        print(base64.b64encode(hashlib.sha512(str(number).encode()).digest()).decode())
        if number % 500 == 0:
            progress.write_text(str(number))

@job(runs_on="linux")
async def quiet(ctx: Ctx) -> None:
    await ctx.sh("until test -e {gate}; do sleep 0.02; done", gate=f"{BASE}/quiet")

ci = workflow("ci", on=push(), jobs=[noisy, quiet])
"""


def line(number: int) -> str:
    return base64.b64encode(hashlib.sha512(str(number).encode()).digest()).decode()


async def stands_still(up: Stack, progress: Path) -> int:
    """How many lines the step has written, once it writes no more."""
    seen: list[str] = []

    async def look() -> int | None:
        seen.append(progress.read_text() if progress.exists() else "")
        return int(seen[-1]) if len(seen) > 20 and seen[-1] and set(seen[-20:]) == {seen[-1]} else None

    return await up.until(look, "the step to stand still", 60)


async def test_a_step_waits_for_a_log_table_that_does_not_answer_and_all_else_goes_on() -> None:
    times = {"KICI_HEARTBEAT_S": "0.3", "KICI_SILENT_S": "2", "KICI_RECOVERY_S": "20"}
    async with stack.running("--slots", "2", KICI_SANDBOX="false", KICI_MAX_LOG_SIZE_BYTES="100000000", **times) as up:
        root = await up.repository(f"BASE, LINES = {str(up.base)!r}, {LINES}\n{NOISY}")
        run_id = (await up.run_of(await up.push(root)))["runId"]
        noisy = await up.job(run_id, "noisy", "running")
        await up.job(run_id, "quiet", "running")

        async def begun() -> bool | None:
            return "here it comes" in await up.log(run_id, noisy["jobId"], 0) or None

        await up.until(begun, "the first line", 30)
        (agent,) = up.pids("kici.agent.main")
        (orchestrator,) = up.pids("kici.orchestrator.main")
        before = rss_mb(agent), rss_mb(orchestrator)
        db = await asyncpg.connect(up.database_url())
        try:
            async with db.transaction():
                await db.execute("lock table log_chunks in access exclusive mode")
                (up.base / "noisy").touch()
                stopped_at = await stands_still(up, up.base / "progress")
                assert 0 < stopped_at < LINES - 500
                assert rss_mb(agent) < before[0] + 40
                assert rss_mb(orchestrator) < before[1] + 40

                # More people who read the log than there are connections of any kind.
                readers = [asyncio.create_task(up.log(run_id, noisy["jobId"], 0)) for _ in range(20)]
                (up.base / "quiet").touch()
                await up.job(run_id, "quiet", "success")
                assert int((up.base / "progress").read_text()) == stopped_at
                assert [one["status"] for one in (await up.get("/agents"))["agents"]] == ["busy"]
                assert (await up.get(f"/runs/{run_id}"))["run"]["status"] == "running"
                refused, waiting = await asyncio.wait(readers, timeout=10)
                assert len([one for one in refused if "503" in str(one.exception())]) >= 16
                for reader in waiting:
                    reader.cancel()
        finally:
            await db.close()

        assert (await up.ended(run_id))["status"] == "success"
        assert "connection lost" not in up.logs()
        log = [text for text in await up.log(run_id, noisy["jobId"], 0) if len(text) == 88]
        assert len(log) == LINES
        assert all(text == line(number) for number, text in enumerate(log))
