from __future__ import annotations

import asyncio
from datetime import timedelta

from asyncpg import Pool, Record

from kici.orchestrator.cluster.coordinator_lease import CoordinatorLease
from kici.orchestrator.store import coordinators
from tests.support.services import running, until

TTL = timedelta(seconds=15)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease_of(pool: Pool[Record], instance: str = "c1", *, ttl: timedelta = TTL, **options: Clock) -> CoordinatorLease:
    return CoordinatorLease(pool, instance, ttl, version="0", url="http://c1", **options)


async def test_it_is_valid_from_the_first_renewal_and_not_longer_than_its_length(pool: Pool[Record]) -> None:
    clock = Clock()
    lease = lease_of(pool, clock=clock)
    assert not lease.valid()
    await lease.run_once()
    clock.now += 14.9
    assert lease.valid()
    clock.now += 0.2
    assert not lease.valid()


async def test_renewed_in_time_it_is_held_since_the_beginning_and_after_a_gap_since_its_end(
    pool: Pool[Record],
) -> None:
    lease = lease_of(pool)
    await lease.run_once()
    first = lease.since
    await lease.run_once()
    assert lease.since == first
    await pool.execute("update coordinators set lease_expires_at = now() - interval '1 second'")
    await lease.run_once()
    assert first is not None
    assert lease.since is not None
    assert lease.since > first


async def test_it_is_renewed_before_it_runs_out(pool: Pool[Record]) -> None:
    lease = lease_of(pool, ttl=timedelta(seconds=0.6))
    async with running(lease), pool.acquire() as db:
        await until(lambda: _lives(pool))
        [before] = await coordinators.living(db)

        async def renewed() -> bool:
            assert lease.valid()
            return any(one.lease_expires_at > before.lease_expires_at for one in await coordinators.living(db))

        await until(renewed)
        [after] = await coordinators.living(db)
        assert after.lease_since == before.lease_since


async def _lives(pool: Pool[Record]) -> bool:
    async with pool.acquire() as db:
        return bool(await coordinators.living(db))


async def test_one_that_leaves_is_gone_at_once(pool: Pool[Record]) -> None:
    staying, leaving = lease_of(pool, "c1"), lease_of(pool, "c2")
    await staying.run_once()
    await leaving.run_once()
    await leaving.leave()
    assert not leaving.valid()
    async with pool.acquire() as db:
        assert [one.instance for one in await coordinators.living(db)] == ["c1"]


async def test_while_the_database_is_silent_it_runs_out_and_comes_back_by_itself(pool: Pool[Record]) -> None:
    lease = lease_of(pool, ttl=timedelta(seconds=0.6))
    async with running(lease), pool.acquire() as blocker:
        await until(lambda: _lives(pool))
        async with blocker.transaction():
            await blocker.execute("lock table coordinators")
            while lease.valid():
                await asyncio.sleep(0.01)
        while not lease.valid():
            await asyncio.sleep(0.01)
