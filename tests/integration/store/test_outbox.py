from __future__ import annotations

import asyncio

from asyncpg import Pool, Record

from kici.orchestrator.store import outbox


async def put(pool: Pool[Record], target: str, *, kind: str = "mail", delay_s: float = 0) -> None:
    async with pool.acquire() as db:
        await outbox.put(db, kind, target, dedupe_key=f"{kind}:{target}", payload={"to": target}, delay_s=delay_s)


async def claim(pool: Pool[Record], batch: int = 10, hold_s: float = 60) -> list[outbox.Claim]:
    async with pool.acquire() as db:
        return await outbox.claim(db, "mail", batch, hold_s=hold_s)


async def test_work_is_asked_for_once_and_is_gone_when_it_is_done(pool: Pool[Record]) -> None:
    for _ in range(3):
        await put(pool, "a")
    (claimed,) = await claim(pool)
    assert (claimed.target, claimed.payload, claimed.attempts) == ("a", {"to": "a"}, 1)
    assert await claim(pool) == []
    async with pool.acquire() as db:
        assert await outbox.done(db, claimed)
        assert not await outbox.done(db, claimed)
        assert await outbox.next_due_s(db, "mail") is None


async def test_what_is_put_later_is_due_later_and_other_kinds_are_left_alone(pool: Pool[Record]) -> None:
    await put(pool, "a", delay_s=100)
    await put(pool, "b", kind="parcel")
    assert await claim(pool) == []
    async with pool.acquire() as db:
        due = await outbox.next_due_s(db, "mail")
    assert due is not None
    assert 90 < due <= 100


async def test_many_workers_share_the_rows(pool: Pool[Record]) -> None:
    for number in range(20):
        await put(pool, str(number))
    async with asyncio.timeout(20):
        shares = await asyncio.gather(*(claim(pool, batch=5) for _ in range(6)))
    assert sorted(claimed.target for share in shares for claimed in share) == sorted(map(str, range(20)))


async def test_a_row_that_is_being_claimed_is_passed_over(pool: Pool[Record]) -> None:
    for target in ("a", "b"):
        await put(pool, target)
    async with asyncio.timeout(10), pool.acquire() as db, db.transaction():
        (first,) = await outbox.claim(db, "mail", 1, hold_s=60)
        (second,) = await claim(pool)
    assert {first.target, second.target} == {"a", "b"}


async def test_a_worker_whose_claim_ran_out_does_not_touch_the_row_any_more(pool: Pool[Record]) -> None:
    await put(pool, "a")
    (slow,) = await claim(pool, hold_s=0)
    (quick,) = await claim(pool)
    assert (slow.attempts, quick.attempts) == (1, 2)
    async with pool.acquire() as db:
        await outbox.fail(db, slow, "late", 0)
        await outbox.give_back(db, slow, 0)
        assert not await outbox.done(db, slow)
    assert await claim(pool) == []
    async with pool.acquire() as db:
        assert await outbox.done(db, quick)


async def test_a_failure_is_kept_and_an_early_visit_does_not_count(pool: Pool[Record]) -> None:
    await put(pool, "a")
    (early,) = await claim(pool)
    async with pool.acquire() as db:
        await outbox.give_back(db, early, 0)
    (again,) = await claim(pool)
    assert again.attempts == 1
    async with pool.acquire() as db:
        await outbox.fail(db, again, "no stamp", 0)
    assert await pool.fetchval("select last_error from outbox") == "no stamp"
    assert (await claim(pool))[0].attempts == 2
