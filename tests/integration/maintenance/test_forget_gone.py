from __future__ import annotations

from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.maintenance.forget_gone import ForgetGone, Pass, Settings
from kici.orchestrator.store import lease
from tests.support import rows

OLD = "now() - interval '8 days'"


@pytest.fixture
async def lead(pool: Pool[Record]) -> lease.Lease:
    async with pool.acquire() as db:
        taken = await lease.acquire(db, "maintenance", "here", timedelta(minutes=1))
    assert taken
    return taken


async def add_coordinator(pool: Pool[Record], instance: str, *, gone: bool) -> None:
    await pool.execute(
        "insert into coordinators (instance, lease_expires_at, version)"
        " values ($1, now() + case when $2 then interval '-8 days' else interval '1 minute' end, 't')",
        instance,
        gone,
    )


async def sessions(pool: Pool[Record]) -> set[str]:
    return {row["agent_id"] for row in await pool.fetch("select agent_id from agent_sessions")}


async def test_only_what_was_closed_long_ago_is_forgotten(pool: Pool[Record], lead: lease.Lease) -> None:
    for agent_id in ("open", "young", "old"):
        await rows.add_session(pool, agent_id)
    await pool.execute("update agent_sessions set closed_at = now() where agent_id = 'young'")
    await pool.execute(f"update agent_sessions set closed_at = {OLD} where agent_id = 'old'")
    assert await ForgetGone(pool, lead, Settings()).run_once() == Pass(sessions=1, coordinators=0)
    assert await sessions(pool) == {"open", "young"}


async def test_a_job_that_waits_for_its_agent_keeps_the_session(pool: Pool[Record], lead: lease.Lease) -> None:
    job = await rows.add_job(pool, await rows.add_run(pool), status="recovering")
    await pool.execute(f"update agent_sessions set closed_at = {OLD}")
    assert (await ForgetGone(pool, lead, Settings()).run_once()).sessions == 0
    await pool.execute("update execution_jobs set status = 'infra_lost' where job_id = $1", job.job_id)
    assert (await ForgetGone(pool, lead, Settings()).run_once()).sessions == 1


async def test_a_coordinator_is_forgotten_with_its_last_session(pool: Pool[Record], lead: lease.Lease) -> None:
    for instance, gone in (("here", False), ("gone", True), ("gone with agents", True)):
        await add_coordinator(pool, instance, gone=gone)
    await rows.add_session(pool, coordinator="gone with agents")
    assert (await ForgetGone(pool, lead, Settings()).run_once()).coordinators == 1
    await pool.execute(f"update agent_sessions set closed_at = {OLD}")
    assert await ForgetGone(pool, lead, Settings()).run_once() == Pass(sessions=1, coordinators=1)
    assert await pool.fetchval("select array_agg(instance) from coordinators") == ["here"]


async def test_a_leader_that_was_replaced_forgets_nothing(pool: Pool[Record], lead: lease.Lease) -> None:
    await rows.add_session(pool, "old")
    await pool.execute(f"update agent_sessions set closed_at = {OLD}")
    await pool.execute("update leases set token = token + 1")
    with pytest.raises(LeaseLost):
        await ForgetGone(pool, lead, Settings()).run_once()
    assert await sessions(pool) == {"old"}


async def test_a_full_batch_is_followed_by_the_next_one(pool: Pool[Record], lead: lease.Lease) -> None:
    for number in range(3):
        await rows.add_session(pool, f"agent-{number}")
    await pool.execute(f"update agent_sessions set closed_at = {OLD}")
    service = ForgetGone(pool, lead, Settings(batch=2))
    assert [(await service.run_once()).sessions for _ in range(2)] == [2, 1]


async def test_slots_that_were_given_back_long_ago_are_forgotten(pool: Pool[Record], lead: lease.Lease) -> None:
    for group, status, closed in (("a", "completed", OLD), ("b", "cancelled", "now()"), ("c", "active", "null")):
        await pool.execute(
            "insert into concurrency_groups (group_key, routing_key, run_id, status, completed_at)"
            f" values ($1, 'k', gen_random_uuid(), $2, {closed})",
            group,
            status,
        )
    assert (await ForgetGone(pool, lead, Settings()).run_once()).slots == 1
    assert await pool.fetchval("select array_agg(group_key order by group_key) from concurrency_groups") == ["b", "c"]
