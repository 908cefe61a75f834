"""What a claim costs beside a million jobs that no agent can run, and while an old snapshot holds vacuum up."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from asyncpg import Connection, Pool, Record
from msgspec import Struct

from kici.engine.labels import requirement
from kici.orchestrator.dispatch import open_lanes
from kici.orchestrator.dispatch.open_lanes import OpenLanes
from kici.orchestrator.store import lanes, notify, queue
from kici.orchestrator.store.database import create_pool, transaction
from kici.orchestrator.store.lanes import Want
from kici.orchestrator.store.queue import Enqueue
from tests.bench.harness import Result, compare, percentile
from tests.support import million, postgres
from tests.support.explain import explained

NAMES = ("claim_buffers_1m", "claim_held_snapshot_ms")
SAMPLES = 7
BEFORE = 50_000
"""Claims before the measurement begins."""
AT_ONCE = 250
MEASURED = 200
ROUNDS = 5


def run() -> list[Result]:
    with postgres.server() as server:
        return [buffers(server), held_snapshot(server)]


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def buffers(server: postgres.Server) -> Result:
    """All pages of what a coordinator asks to claim one job: the look for lanes, and the claim."""
    with (
        million.database(server) as crowded,
        million.database(server, waiting=10, history=10) as empty,
    ):
        found = asyncio.run(_pages([crowded, empty]))
    return compare(
        "claim_buffers_1m", found[0], "the same with 10 jobs and no history", found[1], limit=1.5, unit="pages"
    )


async def _pages(urls: Sequence[str]) -> list[list[float]]:
    pools = [await create_pool(url, 2) for url in urls]
    found: list[list[float]] = [[] for _ in urls]
    try:
        for _ in range(SAMPLES + 1):
            for number, pool in enumerate(pools):
                found[number].append(await _one_claim(pool))
    finally:
        for pool in pools:
            pool.terminate()
    return [counts[1:] for counts in found]


async def _one_claim(pool: Pool[Record]) -> float:
    """Bounds are those of a coordinator that has looked before."""
    number = await pool.fetchval("select id from label_sets where key = 'linux'")
    async with pool.acquire() as db:
        known = await lanes.open_lanes(db, [number])
    lane = min(known)
    async with explained(pool) as plan:
        await lanes.open_label_sets(plan.db, [number])
        await lanes.open_lanes(plan.db, [number], known)
        await lanes.next_due_s(plan.db)
        await lanes.claim(plan.db, "here", [Want(lane, million.SESSION, uuid.uuid4().hex, known[lane])], 10)
    return float(plan.buffers)


# ── an old snapshot ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Idle(Struct, frozen=True):
    session_id: str
    labels: frozenset[str]
    free: int


class _Coordinator:
    """Claims as a dispatcher does, and ends at once what it has claimed."""

    def __init__(self, pool: Pool[Record], session: str) -> None:
        self.pool = pool
        self._session = session
        self._lanes = OpenLanes(open_lanes.Settings(timedelta(seconds=5)))

    async def claim(self, free: int) -> float:
        """Milliseconds of one pass that gives `free` jobs."""
        idle = [_Idle(self._session, frozenset({"kici:os:linux"}), free)]
        self._lanes.heard({notify.NEW_ROWS})
        started = time.perf_counter()
        if self._lanes.must_look(idle):
            async with transaction(self.pool) as db:
                await self._lanes.look(db, idle)
        wishes = self._lanes.wishes(idle, [idle[0].labels])
        async with transaction(self.pool) as db:
            wants = [Want(w.lane, w.session_id, uuid.uuid4().hex, self._lanes.bound(w.lane)) for w in wishes]
            claims = await lanes.claim(db, "here", wants, 10)
        self._lanes.note(wishes, claims)
        took = (time.perf_counter() - started) * 1_000
        if len(claims) != free:
            raise RuntimeError(f"{len(claims)} claims instead of {free}")
        async with transaction(self.pool) as db:
            await db.execute(
                "delete from dispatch_queue where id = any($1::uuid[])", [claim.job_id for claim in claims]
            )
        return took


def held_snapshot(server: postgres.Server) -> Result:
    return asyncio.run(_held_snapshot(server))


async def _held_snapshot(server: postgres.Server) -> Result:
    async with postgres.clone(server) as held_url, postgres.clone(server) as free_url:
        idle: Connection[Record] = await asyncpg.connect(held_url, timeout=10)
        coordinators = []
        try:
            for url in (held_url, free_url):
                pool = await create_pool(url, 2)
                coordinators.append(_Coordinator(pool, await _prepare(pool)))
            await idle.execute("begin isolation level repeatable read; select count(*) from label_sets")
            for one in coordinators:
                for _ in range(BEFORE // AT_ONCE):
                    await one.claim(AT_ONCE)
                await one.pool.execute("vacuum dispatch_queue")
            times: list[list[float]] = [[], []]
            for _ in range(ROUNDS):
                for one, found in zip(coordinators, times, strict=True):
                    found.append(percentile([await one.claim(1) for _ in range(MEASURED)], 0.99))
        finally:
            idle.terminate()
            for one in coordinators:
                one.pool.terminate()
    return compare(
        "claim_held_snapshot_ms", times[0], "the same without the old transaction", times[1], limit=2, unit="ms"
    )


async def _prepare(pool: Pool[Record]) -> str:
    """Jobs of one lane; returns the session of an agent that can run them."""
    session = str(uuid.uuid4())
    await pool.execute(
        "insert into coordinators (instance, lease_expires_at, version) values ('here', now() + interval '1 day', 't')"
    )
    await pool.execute(
        """
        insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, labels, slots)
        values ($1, 'agent', 'boot', 'here', 1, '{kici:os:linux}', 1000)
        """,
        session,
    )
    linux = requirement(["linux"])
    async with pool.acquire() as db:
        for _ in range((BEFORE + ROUNDS * MEASURED) // 1_000 + 1):
            await queue.enqueue(
                db, [Enqueue(str(uuid.uuid4()), str(uuid.uuid4()), "ci", "job", "r", linux) for _ in range(1_000)]
            )
    await pool.execute("vacuum analyze dispatch_queue")
    return session
