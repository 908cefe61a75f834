"""Concurrency groups where much happens at once, on two coordinators."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from asyncpg import Pool, Record

from kici.engine.lifecycle import TERMINAL_JOB, JobEvent
from kici.engine.lockfile import LockConcurrency, LockJob, LockNeed, Retry
from kici.orchestrator.errors import Conflict
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.frames import Answer, SessionRef, Taken
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_jobs
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.store import concurrency, lanes, sessions
from kici.orchestrator.store.database import create_pool
from kici.orchestrator.store.lanes import Want
from kici.orchestrator.store.sessions import NewSession
from kici.wire.agent import JobAccepted, JobStatusChanged, StepStatusChanged
from tests.support.locks import job
from tests.support.runs import Made, make_run
from tests.support.told import Told

LIMITS = Limits()
THREE = LockConcurrency("deploy", max=3, pending="queue")


class Coordinator:
    """One of several: a pool, a status writer, and an agent of its own."""

    def __init__(self, name: str, pool: Pool[Record]) -> None:
        self.name = name
        self.pool = pool
        self.writer = StatusWriter(pool, Told(), LIMITS, hold=lambda db: sessions.hold_lease(db, name))
        self.session = SessionRef("", f"agent of {name}")
        self.has: dict[str, int] = {}
        """Job → attempt that the agent runs."""

    async def connect(self) -> None:
        new = NewSession(
            id=str(uuid.uuid4()),
            agent_id=self.session.agent_id,
            boot_id="b",
            token_id=None,
            coordinator=self.name,
            protocol=1,
            version="test",
            labels=("kici:os:linux",),
            slots=100,
        )
        async with self.pool.acquire() as db, db.transaction():
            await agent_sessions.arrive(db, LIMITS, new, [])
        self.session = SessionRef(new.id, new.agent_id)
        self.has.clear()

    async def take(self) -> int:
        """Claim what is free, and accept it."""
        async with self.pool.acquire() as db, db.transaction():
            wants = [
                Want(lane, self.session.id, uuid.uuid4().hex)
                for lane in await lanes.every_open_lane(db)
                for _ in range(5)
            ]
            claimed = await lanes.claim(db, self.name, wants, 60)
        for one in claimed:
            if isinstance(await self._say(JobAccepted(one.job_id, one.attempt)), Taken):
                self.has[one.job_id] = one.attempt
        return len(claimed)

    async def end_one(self, job_id: str, status: str) -> None:
        attempt = self.has.pop(job_id)
        now = int(time.time() * 1000)
        await self._say(StepStatusChanged(job_id, attempt, 0, "run", "running", now))
        await self._say(JobStatusChanged(job_id, attempt, status, now))

    async def leave(self) -> None:
        async with self.pool.acquire() as db, db.transaction():
            await agent_sessions.leave(db, LIMITS, self.session.id)

    async def _say(self, frame: JobAccepted | StepStatusChanged | JobStatusChanged) -> Answer:
        async with asyncio.timeout(30):
            return await self.writer.submit(self.session, frame)


@pytest.fixture
async def both(pool: Pool[Record], database_url: str) -> AsyncIterator[list[Coordinator]]:
    """Two coordinators on one database."""
    made, services = [], []
    for name in ("coordinator-a", "coordinator-b"):
        await pool.execute(
            "insert into coordinators (instance, lease_expires_at, version) values ($1, now() + interval '1 h', 't')",
            name,
        )
        one = Coordinator(name, await create_pool(database_url, 15))
        services.append(asyncio.create_task(one.writer.run()))
        await one.connect()
        made.append(one)
    try:
        yield made
    finally:
        for service in services:
            service.cancel()
        await asyncio.gather(*services, return_exceptions=True)
        for one in made:
            one.pool.terminate()


async def watch_slots(pool: Pool[Record]) -> None:
    """Note, inside every transaction that changes it, how many hold a slot of each group."""
    await pool.execute(
        """
        create table seen (scope text, name text, active bigint);
        create function note() returns trigger language plpgsql as $$ begin
          insert into seen select routing_key, group_key, count(*) from concurrency_groups
           where status = 'active' group by 1, 2;
          return null;
        end $$;
        create trigger note after insert or update on concurrency_groups for each statement execute function note();
        """
    )


async def most_at_once(pool: Pool[Record]) -> dict[str, int]:
    rows = await pool.fetch("select name, max(active) as most from seen group by name")
    return {row["name"]: row["most"] for row in rows}


async def test_fifty_runs_at_once_on_two_coordinators_get_no_more_than_max_slots(
    both: list[Coordinator], pool: Pool[Record]
) -> None:
    await watch_slots(pool)
    await asyncio.gather(*(make_run(both[n % 2].pool, [job("a")], concurrency=THREE) for n in range(50)))
    counts = await pool.fetch("select status, count(*) as n from concurrency_groups group by status order by status")
    assert [tuple(row) for row in counts] == [("active", 3), ("queued", 47)]
    assert await pool.fetchval("select count(*) from dispatch_queue") == 3
    assert await most_at_once(pool) == {"deploy": 3}


async def test_fifty_runs_that_end_at_once_on_two_coordinators_all_get_their_turn(
    both: list[Coordinator], pool: Pool[Record]
) -> None:
    await watch_slots(pool)
    made = [await make_run(pool, [job("a")], concurrency=THREE) for _ in range(50)]

    async def work(one: Coordinator) -> None:
        while await pool.fetchval("select count(*) from execution_runs where completed_at is null"):
            await one.take()
            await asyncio.gather(*(one.end_one(job_id, "success") for job_id in list(one.has)))

    async with asyncio.timeout(90):
        await asyncio.gather(*map(work, both))
    assert {(await one.run())["status"] for one in made} == {"success"}
    assert await most_at_once(pool) == {"deploy": 3}
    started = await pool.fetch(
        "select arrival from concurrency_groups g join execution_jobs j using (run_id) order by j.ready_at, arrival"
    )
    order = [row["arrival"] for row in started]
    assert order == sorted(order)


async def test_a_coordinator_that_dies_between_the_end_and_the_commit_leaves_everything_as_it_was(
    pool: Pool[Record], database_url: str
) -> None:
    one = LockConcurrency("deploy")
    first, second = [await make_run(pool, [job("a")], concurrency=one) for _ in range(2)]
    dying = await create_pool(database_url, 1)
    async with asyncio.timeout(20):
        with suppress(Exception):
            async with dying.acquire() as db, db.transaction():
                await end(db, await lock_jobs(db, LIMITS, [first["a"]]), [End(first["a"], JobEvent.FAIL)])
                assert await db.fetchval("select status from execution_jobs where job_id = $1", second["a"]) == "queued"
                await pool.execute("select pg_terminate_backend($1)", db.get_server_pid())
                await db.fetchval("select 1")
    dying.terminate()
    assert (await first.statuses(), await second.statuses()) == ({"a": "queued"}, {"a": "pending"})
    statuses = await pool.fetch("select status from concurrency_groups order by arrival")
    assert [row["status"] for row in statuses] == ["active", "queued"]
    async with asyncio.timeout(20), pool.acquire() as db, db.transaction():
        await end(db, await lock_jobs(db, LIMITS, [first["a"]]), [End(first["a"], JobEvent.FAIL)])
    assert await second.statuses() == {"a": "queued"}


# ── everything at once ────────────────────────────────────────────────────────────────────────────────────────────────


def some_group(dice: random.Random, names: str) -> LockConcurrency | None:
    if dice.random() < 0.3:
        return None
    name = dice.choice(names)
    return LockConcurrency(
        name,
        cancel_in_progress=dice.random() < 0.4,
        max={"x": 1, "y": 2, "z": 3}[name],
        pending=dice.choice(("queue", "keep-latest")),
    )


def some_jobs(dice: random.Random) -> list[LockJob]:
    return [
        job(
            "test",
            matrix={"v": ("1", "2", "3")},
            max_parallel=dice.choice((None, 1, 2)),
            fail_fast=dice.random() < 0.5,
            concurrency=some_group(dice, "yz"),
            retry_on_infra=Retry(3, delay_ms=0) if dice.random() < 0.5 else None,
        ),
        job("deploy", needs=["test"], concurrency=some_group(dice, "xz")),
        job("report", needs=[LockNeed("deploy", tuple(TERMINAL_JOB)), LockNeed("test", tuple(TERMINAL_JOB))]),
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_at_once_nobody_waits_in_a_circle_and_every_run_ends(
    both: list[Coordinator], pool: Pool[Record], seed: int
) -> None:
    await watch_slots(pool)
    made: list[Made] = []

    async def make(dice: random.Random) -> None:
        jobs, repo = some_jobs(dice), dice.choice(("local/one", "local/two"))
        made.append(await make_run(dice.choice(both).pool, jobs, repo=repo, concurrency=some_group(dice, "xyz")))

    async def cancel(dice: random.Random) -> None:
        if made:
            with suppress(Conflict):
                async with dice.choice(both).pool.acquire() as db, db.transaction():
                    await cancel_run(db, dice.choice(made).run_id, by="me", reason="enough", force=dice.random() < 0.3)

    async def work(dice: random.Random, one: Coordinator) -> None:
        await one.take()
        for job_id in dice.sample(sorted(one.has), k=min(len(one.has), 3)):
            await one.end_one(job_id, dice.choice(("success", "success", "failed", "cancelled")))

    async def come_back(one: Coordinator) -> None:
        await one.leave()
        await one.connect()

    async def happen(dice: random.Random, one: Coordinator) -> None:
        for _ in range(25):
            match dice.choice("mmccwwwwl" if one.has else "mmcww"):
                case "m":
                    await make(dice)
                case "c":
                    await cancel(dice)
                case "w":
                    await work(dice, one)
                case "l":
                    await come_back(one)

    async with asyncio.timeout(150):
        await asyncio.gather(
            *(happen(random.Random(10 * seed + n), both[n % 2]) for n in range(2)),
            *(asyncio.gather(*(make(random.Random(100 * seed + 10 * n + k)) for k in range(4))) for n in range(4)),
            *(cancel(random.Random(1000 * seed + n)) for n in range(10)),
        )
        dice = random.Random(seed)
        while await pool.fetchval("select count(*) from execution_runs where completed_at is null"):
            async with pool.acquire() as db:
                assert await concurrency.find_idle(db, 10) == []
                assert await concurrency.find_ended(db, 10) == []
            await asyncio.gather(*(work(dice, one) for one in both))
    assert await pool.fetchval("select count(*) from execution_jobs where completed_at is null") == 0
    assert await pool.fetchval("select count(*) from concurrency_groups where completed_at is null") == 0
    assert await pool.fetchval("select count(*) from dispatch_queue") == 0
    assert all(most <= {"x": 1, "y": 2, "z": 3}[name] for name, most in (await most_at_once(pool)).items())
    for one in both:
        await one.pool.close()  # a connection tells its counts when it ends
    assert await pool.fetchval("select deadlocks from pg_stat_database where datname = current_database()") == 0
