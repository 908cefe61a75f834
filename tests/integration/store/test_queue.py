from __future__ import annotations

import asyncio
import uuid

import pytest
from asyncpg import Pool, Record

from kici.engine.labels import Requirement, requirement
from kici.engine.lockfile import Regex
from kici.orchestrator.store import label_sets, lanes, queue
from kici.orchestrator.store.lanes import Claimed, Lane, Want
from kici.orchestrator.store.queue import Enqueue, Release
from tests.support import rows
from tests.support.explain import explained

LINUX = requirement(["linux"])


@pytest.fixture(autouse=True)
async def living(pool: Pool[Record]) -> None:
    await pool.execute(
        """
        insert into coordinators (instance, lease_expires_at, version)
        select name, now() + interval '1 hour', 't' from unnest('{here,there}'::text[]) name
        """
    )


def waiting(repository: str = "r", wanted: Requirement = LINUX, **more: object) -> Enqueue:
    return Enqueue(
        job_id=str(uuid.uuid4()),
        run_id=str(uuid.uuid4()),
        workflow_name="ci",
        job_name="job",
        repository=repository,
        requirement=wanted,
        **more,  # type: ignore[arg-type]
    )


async def put(pool: Pool[Record], *jobs: Enqueue) -> list[str]:
    async with pool.acquire() as db, db.transaction():
        await queue.enqueue(db, jobs)
    return [job.job_id for job in jobs]


async def claim(pool: Pool[Record], session: str, free: int, coordinator: str = "here") -> list[Claimed]:
    async with pool.acquire() as db, db.transaction():
        found = await lanes.every_open_lane(db)
        wants = [Want(lane, session, uuid.uuid4().hex) for lane in found for _ in range(free)]
        return await lanes.claim(db, coordinator, wants, 10)


async def ids(pool: Pool[Record], session: str, free: int = 1) -> list[str]:
    return [one.job_id for one in await claim(pool, session, free)]


async def test_no_row_is_given_twice_however_many_claim_at_once(pool: Pool[Record]) -> None:
    put_in = await put(pool, *(waiting(f"repo-{number % 3}") for number in range(120)))
    sessions = [await rows.add_session(pool, f"agent-{number}") for number in range(8)]

    async def claim_all(session: str, coordinator: str) -> list[Claimed]:
        got: list[Claimed] = []
        while found := await claim(pool, session, 3, coordinator):
            got += found
        return got

    async with asyncio.timeout(30):
        got = await asyncio.gather(
            *(claim_all(session, "here" if number % 2 else "there") for number, session in enumerate(sessions))
        )
    claimed = [one.job_id for some in got for one in some]
    # Rows that another one was just taking are passed over, so somebody may have stopped early; nobody got the same.
    assert len(claimed) == len(set(claimed))
    claimed += await ids(pool, sessions[0], 200)
    assert sorted(claimed) == sorted(put_in)


async def test_a_claim_sets_attempt_session_token_and_deadline_at_once(pool: Pool[Record]) -> None:
    (job_id,) = await put(pool, waiting())
    session = await rows.add_session(pool)
    (one,) = await claim(pool, session, 1)
    assert (one.job_id, one.attempt, one.session_id, one.used) == (job_id, 1, session, 1)
    row = await pool.fetchrow("select *, ack_deadline - now() < interval '10 s' as soon from dispatch_queue")
    assert row
    assert (row["attempt"], row["session_id"], row["job_token_hash"], row["soon"]) == (1, session, one.token_hash, True)


async def test_inside_a_lane_age_decides_and_priority_is_worth_some_of_it(pool: Pool[Record]) -> None:
    old, new, urgent = await put(pool, waiting(), waiting(), waiting(priority=1))
    await pool.execute("update dispatch_queue set sort_key = sort_key - 30 where id = $1", old)
    session = await rows.add_session(pool)
    assert [await ids(pool, session) for _ in range(3)] == [[urgent], [old], [new]]


async def test_a_row_that_is_not_due_yet_is_passed_over(pool: Pool[Record]) -> None:
    later, now = await put(pool, waiting(delay_s=60, attempt=1), waiting())
    session = await rows.add_session(pool)
    assert await ids(pool, session, 2) == [now]
    async with pool.acquire() as db:
        due = await lanes.next_due_s(db)
        assert due is not None
        assert 55 < due <= 60
    await pool.execute("update dispatch_queue set not_before = now() where id = $1", later)
    (again,) = await claim(pool, session, 1)
    assert (again.job_id, again.attempt) == (later, 2)


async def test_a_row_that_somebody_has_locked_is_passed_over(pool: Pool[Record]) -> None:
    first, second = await put(pool, waiting(), waiting())
    session = await rows.add_session(pool)
    async with asyncio.timeout(10), pool.acquire() as db, db.transaction():
        await db.execute("select from dispatch_queue where id = $1 for update", first)
        assert await ids(pool, session, 2) == [second]
    assert await ids(pool, session, 2) == [first]


async def test_a_lapsed_coordinator_and_a_lost_session_get_nothing(pool: Pool[Record]) -> None:
    await put(pool, waiting())
    session = await rows.add_session(pool)
    assert await claim(pool, session, 1, "stranger") == []
    await pool.execute("update coordinators set lease_expires_at = now() where instance = 'here'")
    assert await claim(pool, session, 1) == []
    for change in ("lost_at = now()", "lost_at = null, closed_at = now()"):
        await pool.execute(f"update agent_sessions set {change}")
        assert await claim(pool, session, 1, "there") == []


async def test_a_released_row_keeps_its_place_and_its_next_claim_the_next_number(pool: Pool[Record]) -> None:
    first, _ = await put(pool, waiting(), waiting())
    session = await rows.add_session(pool)
    await claim(pool, session, 1)
    async with pool.acquire() as db:
        await queue.release(db, [Release(first, given_back=True, expires_s=60)])
    (again,) = await claim(pool, session, 1)
    assert (again.job_id, again.attempt, again.used) == (first, 2, 1)


async def test_enqueuing_twice_is_once(pool: Pool[Record]) -> None:
    job = waiting()
    await put(pool, job)
    session = await rows.add_session(pool)
    await claim(pool, session, 1)
    await put(pool, job)
    assert await pool.fetchval("select session_id from dispatch_queue") == session


async def test_a_requirement_comes_back_as_it_was_put(pool: Pool[Record]) -> None:
    wanted = requirement(["linux", "gpu-*", Regex("^zone-[ab]$")], ["slow", Regex("x$")])
    await put(pool, waiting(wanted=wanted), waiting(wanted=LINUX), waiting(wanted=wanted))
    async with pool.acquire() as db:
        sets = await label_sets.read(db, await lanes.open_label_sets(db, ()))
    assert set(sets.values()) == {wanted, LINUX}
    assert await pool.fetchval("select count(*) from label_sets") == 2


async def test_two_that_make_the_same_label_sets_at_once_agree(pool: Pool[Record]) -> None:
    sets = [requirement([f"label-{number}"]) for number in range(10)]
    async with asyncio.timeout(20):
        await asyncio.gather(
            *(put(pool, *(waiting(wanted=one) for one in (sets if turn % 2 else sets[::-1]))) for turn in range(8))
        )
    assert await pool.fetchval("select count(*) from label_sets") == 10


@pytest.fixture
async def crowded(pool: Pool[Record]) -> Pool[Record]:
    """50,000 jobs that no agent here can run, in one lane, and a few that one can."""
    await put(pool, *(waiting("few") for _ in range(3)), waiting("crowd", requirement(["mainframe"])))
    await pool.execute(
        """
        insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key, expires_at)
        select gen_random_uuid(), gen_random_uuid(), 'ci', 'job', 'crowd',
               (select id from label_sets where labels = '{mainframe}'), n, now() + interval '1 hour'
          from generate_series(1, 50000) n
        """
    )
    await pool.execute("vacuum analyze dispatch_queue, label_sets, agent_sessions, coordinators")
    return pool


async def test_what_nobody_can_run_does_not_slow_the_claim_of_what_somebody_can(crowded: Pool[Record]) -> None:
    session = await rows.add_session(crowded)
    lane = await crowded.fetchrow("select label_set_id, repository from dispatch_queue where repository = 'few'")
    assert lane
    async with explained(crowded) as plan:
        await lanes.open_label_sets(plan.db, ())
        await lanes.open_lanes(plan.db, [lane["label_set_id"]])
    assert not plan.scans("dispatch_queue")
    assert plan.buffers < 40
    wants = [Want(Lane(**lane), session, uuid.uuid4().hex) for _ in range(3)]
    async with explained(crowded) as plan:
        await lanes.claim(plan.db, "here", wants, 10)
    assert not plan.scans("dispatch_queue")
    assert plan.buffers < 150


async def test_the_sweepers_look_only_at_what_is_due(crowded: Pool[Record]) -> None:
    async with explained(crowded) as plan:
        await queue.find_expired(plan.db, 100)
        await queue.find_unacknowledged(plan.db, 100)
        await lanes.next_due_s(plan.db)
    assert not plan.scans("dispatch_queue")
    assert plan.buffers < 30
