"""Real runs, made as the pipeline makes them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpg import Pool, Record
from msgspec import Struct

from kici.engine.events import Event, EventType
from kici.engine.lockfile import Level, LockConcurrency, LockGenerator, LockJob
from kici.engine.plan import plan
from kici.orchestrator.lifecycle.new_run import settle_new_runs
from kici.orchestrator.store import runs
from kici.orchestrator.store.runs import NewJob, NewNeed, NewRun, Reused
from tests.support.locks import workflow

SHA = "a" * 40


class Made(Struct, frozen=True):
    pool: Pool[Record]
    run_id: str
    ids: dict[str, str]
    """Job's name → id."""

    def __getitem__(self, name: str) -> str:
        return self.ids[name]

    async def run(self) -> Record:
        row = await self.pool.fetchrow("select * from execution_runs where run_id = $1", self.run_id)
        assert row
        return row

    async def job(self, name: str) -> Record:
        row = await self.pool.fetchrow("select * from execution_jobs where job_id = $1", self.ids[name])
        assert row
        return row

    async def queue_row(self, name: str) -> Record | None:
        return await self.pool.fetchrow("select * from dispatch_queue where id = $1", self.ids[name])

    async def statuses(self) -> dict[str, str]:
        rows = await self.pool.fetch(
            "select job_name, status from execution_jobs where run_id = $1 order by position", self.run_id
        )
        return {row["job_name"]: row["status"] for row in rows}

    async def learn(self) -> None:
        """The ids of jobs that have come since."""
        rows = await self.pool.fetch("select job_name, job_id from execution_jobs where run_id = $1", self.run_id)
        self.ids.update({row["job_name"]: row["job_id"] for row in rows})

    async def needs(self) -> dict[str, list[str]]:
        """Job → names of what it needs; jobs that need nothing are left out."""
        rows = await self.pool.fetch(
            """
            select job_name, array_agg(upstream_name order by upstream_name) as needs
              from execution_job_needs where run_id = $1 group by job_name
            """,
            self.run_id,
        )
        return {row["job_name"]: row["needs"] for row in rows}

    async def steps(self, name: str) -> dict[tuple[int, int], str]:
        """(attempt, index) → status"""
        rows = await self.pool.fetch(
            "select attempt, step_index, status from execution_steps where job_id = $1 order by 1, 2", self.ids[name]
        )
        return {(row["attempt"], row["step_index"]): row["status"] for row in rows}


async def make_run(
    pool: Pool[Record],
    jobs: Sequence[LockJob],
    *,
    repo: str = "local/demo",
    problems: Sequence[str] = (),
    skipped: Sequence[str] = (),
    reused: Mapping[str, Reused] | None = None,
    timeout_ms: int | None = None,
    concurrency: LockConcurrency | None = None,
    generators: Sequence[LockGenerator] = (),
    scope: str = "",
    permissions: dict[str, Level] | None = None,
    **event: Any,
) -> Made:
    """`problems` names jobs that fail at birth, `skipped` those whose rules do not want them, `reused` those that are
    taken over from an earlier run. `concurrency` is the whole run's, `scope` that of its groups: by default the
    repository's."""
    happened = Event(EventType.PUSH, branch="main", sha=SHA, repo=repo, **event)
    new: list[NewJob] = []
    planned = plan(
        workflow("ci", jobs=jobs, generators=tuple(generators), concurrency=concurrency, permissions=permissions),
        happened,
    )
    assert not planned.concurrency_problem
    ids = {one.name: str(uuid.uuid4()) for one in planned.jobs}
    for one in planned.jobs:
        new.append(
            NewJob(
                job_id=ids[one.name],
                name=one.name,
                base_name=one.job.name,
                position=one.position,
                definition=one.job,
                matrix=one.matrix,
                needs=tuple(NewNeed(ids[need.upstream], need.upstream, tuple(need.run_on)) for need in one.needs),
                requirement=one.requirement,
                concurrency_group=one.concurrency_group,
                problem="it cannot be made" if one.name in problems else "",
                skip="no file below docs/ has changed" if one.name in skipped else "",
                reused=(reused or {}).get(one.name),
                seed=one.seed,
                generated_by=one.generated_by,
                carried=one.carried,
            )
        )
    run = NewRun(
        run_id=str(uuid.uuid4()),
        event_id=None,
        workflow_name="ci",
        provider="internal",
        routing_key="internal:local",
        repo=repo,
        ref="refs/heads/main",
        sha=SHA,
        workflow_sha=SHA,
        lock_sha256="b" * 64,
        clone_url=f"/git/{repo}",
        event=happened,
        delivery_id="d",
        trigger_event="push",
        timeout_ms=timeout_ms,
        concurrency_scope=scope or f"internal:local::{repo}",
        concurrency_group=planned.concurrency_group,
        concurrency=runs.policy(concurrency),
    )
    async with pool.acquire() as db, db.transaction():
        assert await runs.create(db, run, new)
        await settle_new_runs(db, [run.run_id])
    return Made(pool, run.run_id, ids)
