from __future__ import annotations

import asyncio
from datetime import timedelta

from asyncpg import Pool, Record

from kici.orchestrator.cluster.leader import Leader
from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.store.lease import Lease
from tests.support.services import running

SHORT = timedelta(seconds=0.6)
LONG = timedelta(hours=1)


class Duty:
    """A leader-only service that tells when it begins and ends, and can be made to meet a lost lease."""

    def __init__(self, told: asyncio.Queue[tuple[str, str, int]], held: Lease, lost: asyncio.Event) -> None:
        self._told = told
        self._held = held
        self._lost = lost

    async def run(self) -> None:
        self._told.put_nowait(("began", self._held.holder, self._held.token))
        try:
            await self._lost.wait()
            self._lost.clear()
            raise LeaseLost(self._held.name)
        finally:
            self._told.put_nowait(("ended", self._held.holder, self._held.token))


class Cluster:
    def __init__(self, pool: Pool[Record], ttl: timedelta) -> None:
        self.told: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()
        self.lost = asyncio.Event()
        self._pool = pool
        self._ttl = ttl

    def leader(self, instance: str) -> Leader:
        return Leader(
            self._pool,
            "sweeper",
            instance,
            lambda held: [Duty(self.told, held, self.lost)],
            ttl=self._ttl,
        )


async def test_one_of_two_leads_and_the_other_follows_when_it_stops(pool: Pool[Record]) -> None:
    cluster = Cluster(pool, SHORT)
    first, second = cluster.leader("a"), cluster.leader("b")
    async with running(second):
        async with running(first):
            _, holder, token = await cluster.told.get()
            assert first.leads != second.leads
        if holder == "a":
            assert await cluster.told.get() == ("ended", "a", token)
            assert await cluster.told.get() == ("began", "b", token + 1)
        assert second.leads
    assert cluster.told.get_nowait()[0] == "ended"


async def test_a_leader_that_stops_gives_the_lease_up(pool: Pool[Record]) -> None:
    cluster = Cluster(pool, LONG)
    async with running(cluster.leader("a")):
        assert await cluster.told.get() == ("began", "a", 1)
    async with running(cluster.leader("b")):
        assert await cluster.told.get() == ("ended", "a", 1)
        assert await cluster.told.get() == ("began", "b", 2)


async def test_a_leader_that_was_replaced_stops_and_leads_again_later_under_a_new_token(pool: Pool[Record]) -> None:
    cluster = Cluster(pool, SHORT)
    async with running(cluster.leader("a")):
        assert await cluster.told.get() == ("began", "a", 1)
        await pool.execute(
            "update leases set holder = 'b', token = token + 1, expires_at = now() + interval '1 second'"
        )
        assert await cluster.told.get() == ("ended", "a", 1)
        assert await cluster.told.get() == ("began", "a", 3)


async def test_a_service_that_meets_a_lost_lease_is_started_again_when_it_is_held_again(pool: Pool[Record]) -> None:
    cluster = Cluster(pool, SHORT)
    async with running(cluster.leader("a")):
        assert await cluster.told.get() == ("began", "a", 1)
        cluster.lost.set()
        assert (await cluster.told.get())[0] == "ended"
        assert (await cluster.told.get())[0] == "began"


async def test_a_leader_that_cannot_renew_stops_before_another_may_follow(pool: Pool[Record]) -> None:
    cluster = Cluster(pool, SHORT)
    leader = cluster.leader("a")
    async with running(leader), pool.acquire() as blocker:
        await cluster.told.get()
        async with blocker.transaction():
            await blocker.execute("lock table leases")
            assert await cluster.told.get() == ("ended", "a", 1)
            assert not leader.leads
        assert (await cluster.told.get())[0] == "began"
