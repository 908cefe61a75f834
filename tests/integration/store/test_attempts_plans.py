"""What the statements of the status path cost beside a million rows of history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from asyncpg import Pool, Record

from kici.engine.lifecycle import JobStatus, RunStatus, StepStatus
from kici.orchestrator.store import attempts, jobs, outbox, run_states, sessions, steps
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.jobs import Acceptance, Ending
from kici.orchestrator.store.outbox import Put
from kici.orchestrator.store.steps import Settlement, StepWrite
from tests.support.explain import explained
from tests.support.million import SESSION

COUNT = 50
"""Rows in a batch. The bounds are for all of them together."""
RUNS = [f"0000000c-0000-4000-8000-{number:012x}" for number in range(1, COUNT + 1)]
JOBS = RUNS
"""Jobs of history have their run's id."""
TABLES = ("execution_runs", "execution_jobs", "execution_steps", "dispatch_queue")
WRITES = [StepWrite(job, job, 1, 0, "step", StepStatus.SUCCESS, log_chunks=0) for job in JOBS]
ENDINGS = [Ending(job, JobStatus.SUCCESS) for job in JOBS]
SETTLEMENTS = [Settlement(job, 1, StepStatus.SUCCESS, StepStatus.SKIPPED) for job in JOBS]

Statement = Callable[[Db], Awaitable[object]]

STATEMENTS: dict[str, tuple[Statement, int]] = {
    "where jobs belong": (lambda db: jobs.whereabouts(db, JOBS), 10 * COUNT),
    "sessions": (lambda db: sessions.states(db, [SESSION], keep=True), 20),
    "locking what is free": (
        lambda db: attempts.lock_free(db, runs=RUNS, job_ids=JOBS, rows=JOBS),
        16 * COUNT,
    ),
    "accepting": (
        lambda db: attempts.accept(db, [Acceptance(job, 1, SESSION, "a") for job in JOBS], starting=RUNS),
        60 * COUNT,
    ),
    "states of steps": (lambda db: steps.states(db, [(job, 1, 0) for job in JOBS]), 8 * COUNT),
    "writing steps": (lambda db: steps.write(db, WRITES), 30 * COUNT),
    "ending": (lambda db: attempts.end(db, ENDINGS, SETTLEMENTS), 60 * COUNT),
    "which runs are over": (lambda db: run_states.endings_of_jobs(db, RUNS), 16 * COUNT),
    "ending runs": (
        lambda db: run_states.end(db, [run_states.Ending(run, RunStatus.SUCCESS) for run in RUNS]),
        60 * COUNT,
    ),
    "asking for work": (
        lambda db: outbox.put_all(db, [Put("compact_log", job, f"compact_log:{job}") for job in JOBS]),
        20 * COUNT,
    ),
    "what a dispatch says": (lambda db: jobs.orders(db, JOBS), 22 * COUNT),
}


@pytest.mark.timeout(300)  # the first one makes the database
@pytest.mark.parametrize(("statement", "pages"), STATEMENTS.values(), ids=STATEMENTS.keys())
async def test_a_statement_touches_few_pages_and_reads_no_growing_table_whole(
    million_rows: Pool[Record], statement: Statement, pages: int
) -> None:
    async with explained(million_rows, answering=True) as plan:
        await statement(plan.db)
    assert not [table for table in TABLES if plan.scans(table)]
    assert plan.buffers < pages


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["where jobs belong", "ending", "which runs are over", "what a dispatch says"])
async def test_statistics_of_a_time_when_nothing_was_there_do_not_mislead(pool: Pool[Record], name: str) -> None:
    """A quiet evening, then a push to everything: the tables grow long before they are looked at again."""
    await pool.execute("alter table execution_runs set (autovacuum_enabled = off)")
    await pool.execute("alter table execution_jobs set (autovacuum_enabled = off)")
    await pool.execute("alter table execution_steps set (autovacuum_enabled = off)")
    await pool.execute("analyze")
    for statement in (
        """
        insert into execution_runs (run_id, workflow_name, provider, repo_identifier, ref, sha, workflow_sha)
        select ('0000000c-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'ci', 'local', 'r', 'm', 'a', 'a'
          from generate_series(1, 20000) n
        """,
        """
        insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, definition, status)
        select run_id, run_id, 'build', 'build', 0, '{}', 'running' from execution_runs
        """,
        """
        insert into execution_steps (run_id, job_id, step_index, step_name)
        select run_id, run_id, 0, 'run' from execution_runs
        """,
    ):
        await pool.execute(statement)
    statement_, pages = STATEMENTS[name]
    async with explained(pool, answering=True) as plan:
        await statement_(plan.db)
    assert not [table for table in TABLES[:3] if plan.scans(table)]
    assert plan.buffers < pages
