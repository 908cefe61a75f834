"""How PostgreSQL runs the statements of concurrency groups beside a long history."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.engine.concurrency import Policy
from kici.engine.lockfile import LockConcurrency
from kici.orchestrator.store import concurrency, jobs
from kici.orchestrator.store.concurrency import Group
from tests.support.explain import explained
from tests.support.locks import job
from tests.support.runs import Made, make_run

ONE = LockConcurrency("deploy", pending="queue")
GROUP = Group("internal:local::local/demo", "deploy")


@pytest.fixture
async def made(pool: Pool[Record]) -> list[Made]:
    """Two runs in a group with a history of 200,000."""
    found = [await make_run(pool, [job("a"), job("b", concurrency=ONE)], concurrency=ONE) for _ in range(2)]
    await pool.execute(
        """
        insert into concurrency_groups (group_key, routing_key, run_id, job_id, status, completed_at)
        select $1, $2, gen_random_uuid(), case when n % 2 = 0 then gen_random_uuid() end, 'completed', now()
          from generate_series(1, 200000) n
        """,
        GROUP.name,
        GROUP.scope,
        timeout=60,
    )
    await pool.execute("analyze", timeout=60)
    return found


async def test_the_statements_of_groups_do_not_read_their_history(pool: Pool[Record], made: list[Made]) -> None:
    runs = [one.run_id for one in made]
    async with explained(pool) as plans:
        await concurrency.standing(plans.db, GROUP)
        await concurrency.of_runs(plans.db, runs)
        await concurrency.close_runs(plans.db, runs)
        await concurrency.close_jobs(plans.db, [made[0]["b"]], [runs[0]])
        await concurrency.find_idle(plans.db, 100)
        await concurrency.find_ended(plans.db, 100)
        await concurrency.ended_among(plans.db, GROUP)
        await concurrency.policies_of_runs(plans.db, runs)
        await jobs.children(plans.db, [(runs[0], "a")])
        await jobs.lock_of_runs(plans.db, runs)
        assert not plans.scans("concurrency_groups")
        assert plans.buffers < 200


async def test_old_rows_are_found_by_their_index(pool: Pool[Record], made: list[Made]) -> None:
    async with explained(pool) as plans:
        await concurrency.forget(plans.db, closed_for=timedelta(days=1), batch=100)
        assert not plans.scans("concurrency_groups")


async def test_a_run_has_one_place_in_its_group(pool: Pool[Record], made: list[Made]) -> None:
    arrival = concurrency.Arrival(str(uuid.uuid4()), GROUP, made[0].run_id, None, Policy(), starts=True)
    async with pool.acquire() as db:
        with pytest.raises(Exception, match="concurrency_groups_holder"):
            await concurrency.insert(db, [arrival])
