from __future__ import annotations

import asyncio
import uuid

import pytest
from asyncpg import Pool, Record

from kici.engine.labels import Requirement, requirement
from kici.engine.lockfile import Regex
from kici.orchestrator.store import label_sets, lanes, queue, queue_rules, tokens
from kici.orchestrator.store.lanes import Claimed, Lane, Want
from kici.orchestrator.store.queue import Enqueue, Release
from tests.support import rows

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


async def test_the_token_of_an_attempt_ends_when_its_job_goes_back_to_the_queue(pool: Pool[Record]) -> None:
    (job_id,) = await put(pool, waiting())
    (one,) = await claim(pool, await rows.add_session(pool), 1)
    async with pool.acquire() as db:
        found = await tokens.find_job(db, one.token_hash)
        assert found is not None
        assert (found.job_id, found.attempt) == (job_id, 1)
        await queue.release(db, [Release(job_id)])
        assert await tokens.find_job(db, one.token_hash) is None


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


async def lane_of(pool: Pool[Record], repository: str = "r") -> Lane:
    number = await pool.fetchval("select label_set_id from dispatch_queue where repository = $1 limit 1", repository)
    return Lane(number, repository)


async def test_looking_from_the_known_lanes_on_finds_the_others(pool: Pool[Record]) -> None:
    await put(pool, *(waiting(name) for name in ("b", "d", "f", "h")), waiting("d", requirement(["gpu"])))
    linux, gpu = (await lane_of(pool, "b")).label_set_id, None
    async with pool.acquire() as db:
        sets = await lanes.open_label_sets(db, ())
        (gpu,) = set(sets) - {linux}
        assert await lanes.open_label_sets(db, [linux]) == [gpu]
        assert await lanes.open_label_sets(db, sets) == []
        whole = await lanes.open_lanes(db, [linux])
        assert {lane.repository for lane in whole} == {"b", "d", "f", "h"}
        for known in (["d"], ["b", "h"], ["a", "c", "i"], ["b", "d", "f", "h"]):
            bounds = {Lane(linux, name): whole.get(Lane(linux, name), 0.0) for name in known}
            assert set(await lanes.open_lanes(db, [linux], bounds)) == set(whole)
        assert set(await lanes.open_lanes(db, [gpu])) == {Lane(gpu, "d")}
        assert await lanes.open_lanes(db, [], {}) == {}
        assert len(await lanes.every_open_lane(db, limit=3)) == 3


async def test_what_lies_before_a_bound_is_not_seen_until_somebody_looks_without(pool: Pool[Record]) -> None:
    old, new = await put(pool, waiting(), waiting())
    await pool.execute("update dispatch_queue set sort_key = sort_key - 100 where id = $1", old)
    lane = await lane_of(pool)
    session = await rows.add_session(pool)
    bound = await pool.fetchval("select sort_key from dispatch_queue where id = $1", new)
    async with pool.acquire() as db:
        assert (await lanes.open_lanes(db, [lane.label_set_id], {lane: bound}))[lane] <= bound
        assert (await lanes.open_lanes(db, [lane.label_set_id]))[lane] < bound - 50
        claimed = await lanes.claim(db, "here", [Want(lane, session, "x", bound), Want(lane, session, "y", bound)], 10)
        assert [one.job_id for one in claimed] == [new]
        assert claimed[0].bound <= bound
        (again,) = await lanes.claim(db, "here", [Want(lane, session, "z")], 10)
    assert again.job_id == old


async def test_a_bound_never_lies_in_the_future_although_priorities_do(pool: Pool[Record]) -> None:
    await put(pool, waiting(priority=-5))
    lane = await lane_of(pool)
    session = await rows.add_session(pool)
    now = await pool.fetchval("select extract(epoch from now())::float8")
    async with pool.acquire() as db:
        assert (await lanes.open_lanes(db, [lane.label_set_id]))[lane] < now + 5
        (one,) = await lanes.claim(db, "here", [Want(lane, session, "x")], 10)
    assert one.bound < now + 5


@pytest.mark.parametrize(
    ("scope", "value", "left"),
    [
        ("all", "", set()),
        ("repository", "a", {"b"}),
        ("label", "kici:os:linux", set()),
        ("label", "kici:os:windows", {"a", "b"}),
    ],
)
async def test_nothing_is_claimed_of_what_is_paused(pool: Pool[Record], scope: str, value: str, left: set[str]) -> None:
    await put(pool, waiting("a"), waiting("b"))
    session = await rows.add_session(pool)
    async with pool.acquire() as db:
        await queue_rules.pause(db, scope, value, reason="", by="me")
        (pause,) = await queue_rules.pauses(db)
    assert {one.lane.repository for one in await claim(pool, session, 1)} == left
    assert {name for name in ("a", "b") if not pause.holds(name, LINUX.labels)} == left
    async with pool.acquire() as db:
        assert await queue_rules.resume(db, scope, value)
        assert not await queue_rules.resume(db, scope, value)
    assert len(await claim(pool, session, 1)) == 2 - len(left)


async def test_a_cap_counts_all_lanes_of_its_repository_and_what_runs_already(pool: Pool[Record]) -> None:
    await put(
        pool, *(waiting("a") for _ in range(3)), *(waiting("a", requirement(["x"])) for _ in range(3)), waiting("b")
    )
    session = await rows.add_session(pool)
    async with pool.acquire() as db:
        await queue_rules.set_cap(db, "a", 2, by="me")
        found = await lanes.every_open_lane(db)
        wants = [Want(lane, session, uuid.uuid4().hex) for lane in found for _ in range(3)]
        assert {one.lane.repository for one in await lanes.claim(db, "here", wants, 10)} == {"b"}, "without the lock"
        async with db.transaction():
            await lanes.lock_caps(db, ["a"])
            claimed = await lanes.claim(db, "here", wants, 10, capped=["a"])
            assert len(claimed) == 2
            assert await lanes.claim(db, "here", wants, 10, capped=["a"]) == []
        assert await queue_rules.running(db, ["a", "c"]) == {"a": 2}
        await db.execute("delete from dispatch_queue where id = $1", claimed[0].job_id)
        assert len(await lanes.claim(db, "here", wants, 10, capped=["a"])) == 1
        await queue_rules.remove_cap(db, "a")
        assert await lanes.claim(db, "here", wants, 10, default_cap=2, capped=["a"]) == []
        assert len(await lanes.claim(db, "here", wants, 10)) == 3


async def test_two_coordinators_that_claim_at_once_keep_a_cap(pool: Pool[Record]) -> None:
    await put(pool, *(waiting("a") for _ in range(60)))
    lane = await lane_of(pool, "a")
    sessions = [await rows.add_session(pool, f"agent-{number}") for number in range(6)]
    async with pool.acquire() as db:
        await queue_rules.set_cap(db, "a", 4, by="me")

    async def claim_all(session: str, coordinator: str) -> int:
        count = 0
        for _ in range(5):
            async with pool.acquire() as db, db.transaction():
                await lanes.lock_caps(db, ["a"])
                wants = [Want(lane, session, uuid.uuid4().hex) for _ in range(3)]
                count += len(await lanes.claim(db, coordinator, wants, 10, capped=["a"]))
        return count

    async with asyncio.timeout(20):
        counts = await asyncio.gather(
            *(claim_all(session, "here" if number % 2 else "there") for number, session in enumerate(sessions))
        )
    assert sum(counts) == 4
