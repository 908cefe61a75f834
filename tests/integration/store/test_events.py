from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterator

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import NotFound
from kici.orchestrator.store import events
from kici.orchestrator.store.events import NewEvent


def event(delivery_id: str, body: bytes = b"{}") -> NewEvent:
    return NewEvent(
        id=events.new_id(),
        delivery_id=delivery_id,
        routing_key="github:hub",
        event="push",
        action="",
        provider="github",
        headers={"x-github-event": "push"},
        repo="a/b",
        ref="refs/heads/main",
        content_type="application/json",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        body=body,
    )


async def count(pool: Pool[Record], table: str) -> int:
    return int(await pool.fetchval(f"select count(*) from {table}"))


async def test_a_batch_is_stored_with_its_bodies(pool: Pool[Record]) -> None:
    first, second = event("1", b"one"), event("2", bytes(range(256)))
    async with pool.acquire() as db:
        assert await events.insert_batch(db, [first, second]) == [True, True]
        stored = await events.read(db, second.id)
    assert (stored.delivery_id, stored.event, stored.provider) == ("2", "push", "github")
    assert (stored.headers, stored.body) == ({"x-github-event": "push"}, bytes(range(256)))
    row = await pool.fetchrow("select * from event_log where id = $1", first.id)
    assert row is not None
    assert (row["status"], row["action"], row["repo_identifier"], row["source"]) == ("received", None, "a/b", "direct")


async def test_what_is_there_or_comes_twice_in_a_batch_is_one_row(pool: Pool[Record]) -> None:
    async with pool.acquire() as db:
        assert await events.insert_batch(db, [event("1")]) == [True]
        assert sorted(await events.insert_batch(db, [event("1"), event("2"), event("2")])) == [False, False, True]
    assert await count(pool, "event_log") == await count(pool, "event_payloads") == 2


async def test_two_coordinators_that_get_the_same_deliveries_store_each_once(pool: Pool[Record]) -> None:
    names = [str(number) for number in range(50)]

    async def insert(order: list[str]) -> list[bool]:
        async with pool.acquire() as db:
            return await events.insert_batch(db, [event(name) for name in order])

    async with asyncio.timeout(20):
        answers = await asyncio.gather(insert(names), insert(names[::-1]), insert(names))
    assert sum(map(sum, answers)) == 50
    assert await count(pool, "event_log") == await count(pool, "event_payloads") == 50


async def test_a_large_body_goes_in_piece_by_piece(pool: Pool[Record]) -> None:
    body = bytes(range(256)) * 40_000
    big = event("big", body)

    def pieces() -> Iterator[memoryview]:
        view = memoryview(body)
        for start in range(0, len(body), 65_536):
            yield view[start : start + 65_536]

    async with pool.acquire() as db:
        async with db.transaction():
            assert await events.insert_streamed(db, big, pieces())
        async with db.transaction():
            assert not await events.insert_streamed(db, event("big", body), pieces())
        assert (await events.read(db, big.id)).body == body
    assert await count(pool, "event_payloads") == 1


async def test_a_delivery_without_a_body_is_not_found(pool: Pool[Record]) -> None:
    async with pool.acquire() as db:
        with pytest.raises(NotFound):
            await events.read(db, events.new_id())


def test_ids_are_uuids_that_grow_with_time() -> None:
    made = [events.new_id() for _ in range(100)]
    assert {uuid.UUID(one).version for one in made} == {7}
    assert len(set(made)) == 100
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)
