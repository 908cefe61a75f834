"""Pages must not read whole tables that grow."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import logs, outbox
from kici.orchestrator.store.views import event_log, runs

Read = Callable[[Any], Awaitable[object]]

RUN = "00000000-0000-4000-8000-000000000007"
GROWING = ("execution_runs", "execution_jobs", "execution_steps", "execution_job_needs", "event_log", "outbox")

READS: dict[str, Read] = {
    "all runs": lambda db: runs.listed(db, runs.Filter(), 20, 0),
    "runs of a repository": lambda db: runs.listed(db, runs.Filter(repo="repo-3"), 20, 0),
    "runs by the beginning of their id": lambda db: runs.listed(
        db, runs.Filter(id_from=RUN, id_to=RUN.replace("7", "f")), 2, 0
    ),
    "runs of the last hour": lambda db: runs.count(db, runs.Filter(since=datetime.now(UTC) - timedelta(hours=1))),
    "one run": lambda db: runs.one(db, RUN),
    "jobs of a run": lambda db: runs.jobs(db, RUN, steps=True),
    "steps of a run, for their logs": lambda db: logs.steps_of_run(db, RUN),
    "all deliveries": lambda db: event_log.listed(db, event_log.Filter(), 50, 0),
    "one delivery": lambda db: event_log.one(db, "d-7"),
    "a claim from the outbox": lambda db: outbox.claim(db, "compact_log", 8, hold_s=60),
}


@pytest.fixture
async def full(pool: Pool[Record]) -> Pool[Record]:
    await pool.execute(
        """
        insert into execution_runs (run_id, workflow_name, status, provider, repo_identifier, ref, sha, workflow_sha,
                                    created_at)
        select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'ci', 'success', 'local',
               'repo-' || n % 50, 'main', 'a', 'a', now() - n * interval '1 minute'
          from generate_series(1, 20000) n;
        insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, definition)
        select run_id, run_id, 'build', 'build', 0, '{}' from execution_runs;
        insert into execution_steps (run_id, job_id, attempt, step_index, step_name)
        select run_id, run_id, 1, 0, 'compile' from execution_runs;
        insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
        select run_id, run_id, '00000000-0000-4000-8000-000000000001', 'build', 'lint', '[]' from execution_runs;
        insert into event_log (org_id, delivery_id, routing_key, event, source, provider, payload_size_bytes,
                               payload_hash, received_at)
        select 'default', 'd-' || n, 'k', 'push', 'direct', 'local', 1, 'x', now() - n * interval '1 minute'
          from generate_series(1, 20000) n;
        insert into outbox (kind, target, dedupe_key, due_at)
        select case when n % 100 = 0 then 'compact_log' else 'mail' end, n::text, n::text,
               now() - n * interval '1 second'
          from generate_series(1, 20000) n
        """
    )
    await pool.execute("analyze")
    return pool


class Explained:
    """Stands before a connection: keeps the plan of every statement that goes through, with what it touched."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.plans: list[Any] = []

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def through(sql: str, *values: object) -> Any:
            transaction = self._db.transaction()
            await transaction.start()
            (plan,) = await self._db.fetchval(f"explain (analyze, buffers, format json) {sql}", *values)
            await transaction.rollback()
            self.plans.append(plan["Plan"])
            return await getattr(self._db, method)(sql, *values)

        return through


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
async def test_no_page_reads_a_growing_table_whole(full: Pool[Record], read: Read) -> None:
    async with full.acquire() as db:
        explained = Explained(db)
        await read(explained)
    assert explained.plans
    for plan in explained.plans:
        scanned = re.findall(r"'Node Type': 'Seq Scan'.*?'Relation Name': '(\w+)'", str(plan))
        assert not set(scanned) & set(GROWING), plan
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 500, plan
