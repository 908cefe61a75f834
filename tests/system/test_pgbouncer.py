"""Everything but LISTEN goes through PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg

from tests.support import replicas
from tests.support.pgbouncer import pooled

PUSHES = 8
DEFAULTS: dict[str, Any] = {
    "KICI_HEARTBEAT_S": "5",
    "KICI_SILENT_S": "15",
    "KICI_RECOVERY_S": "120",
    "KICI_COORDINATOR_LEASE_S": "15",
    "KICI_DISPATCH_ACK_TIMEOUT_MS": "10000",
}
"""A slow machine must not look like an outage: one word of trouble in a log fails the test."""
WORKFLOW = """
from kici import job, push, workflow

build = job("build", runs_on="linux", matrix={"n": ["1", "2", "3"]}, steps=["echo $KICI_JOB; seq 1 200"])
test = job("test", runs_on="linux", needs=[build], steps=["echo tested"])
ci = workflow("ci", on=push(), jobs=[build, test])
"""


async def test_pushes_become_finished_runs_through_a_pooler_without_one_error(database_url: str, folder: Path) -> None:
    async with (
        pooled(database_url, folder) as url,
        replicas.running(url, **DEFAULTS, KICI_DATABASE_LISTEN_URL=database_url) as two,
    ):
        for number, coordinator in enumerate(two.coordinators):
            await two.agent(f"agent-{number}", coordinator.port, slots=4)
        root = await two.repository(WORKFLOW)
        sha = await two.push(root)
        await asyncio.gather(*(two.deliver(sha) for _ in range(PUSHES - 1)))

        async def all_there() -> bool | None:
            runs = await two.runs(sha)
            return (len(runs) == PUSHES and {run["status"] for run in runs} == {"success"}) or None

        await two.until(all_there, "all runs to succeed", 90)
        run_id = (await two.runs(sha))[0]["runId"]
        job = (await two.jobs(run_id))["test"]
        assert await two.log(run_id, job["jobId"], 0) == ["tested"]
        for coordinator in two.coordinators:
            said = two.said(coordinator)
            assert "[warning" not in said, said
            assert "[error" not in said, said


async def test_the_pooler_is_in_transaction_mode(database_url: str, folder: Path) -> None:
    """Else the test above shows nothing: what one transaction sets, another client's next one may meet."""
    async with pooled(database_url, folder, size=1) as url:
        first, second = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(2)]
        try:
            same = "select pg_backend_pid()"
            assert await first.fetchval(same) == await second.fetchval(same)
        finally:
            await first.close()
            await second.close()
