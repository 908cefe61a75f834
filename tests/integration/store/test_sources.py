from __future__ import annotations

import asyncio

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import sources
from kici.orchestrator.store.sources import NewSource, StoredSource

GITHUB = NewSource(name="hub", provider="github", clone_url="https://git.example/{repo}", allowed_events=["push"])
GENERIC = NewSource(
    name="monitor",
    provider="generic",
    verification_method="api_key",
    header_name="X-Key",
    event_type_path="$.kind",
    max_payload_bytes=500,
    allowed_events=["alert"],
)


async def create(pool: Pool[Record], new: NewSource) -> StoredSource | None:
    async with pool.acquire() as db, db.transaction():
        return await sources.create(db, new)


async def test_a_source_comes_back_as_it_was_made(pool: Pool[Record]) -> None:
    hub, monitor = await create(pool, GITHUB), await create(pool, GENERIC)
    assert hub
    assert monitor
    assert (hub.routing_key, hub.clone_url, hub.allowed_events) == ("github:hub", GITHUB.clone_url, ["push"])
    assert monitor.routing_key == f"generic:default:{monitor.id}"
    assert (monitor.header_name, monitor.event_type_path, monitor.max_payload_bytes) == ("X-Key", "$.kind", 500)
    assert (monitor.rate_limit_rpm, "authorization" in monitor.strip_headers) == (600, True)
    async with pool.acquire() as db:
        assert await sources.all_live(db) == [hub, monitor]


@pytest.mark.parametrize("second", [GITHUB, NewSource(name="hub", provider="generic")])
async def test_a_name_is_given_once_whatever_the_provider(pool: Pool[Record], second: NewSource) -> None:
    async with asyncio.timeout(20):
        made = await asyncio.gather(create(pool, GITHUB), create(pool, second))
    assert [one is None for one in made].count(True) == 1


async def test_a_deleted_source_is_gone_and_its_name_is_free(pool: Pool[Record]) -> None:
    for new in (GITHUB, GENERIC):
        made = await create(pool, new)
        assert made
        async with pool.acquire() as db:
            assert await sources.delete(db, made)
            assert not await sources.delete(db, made)
            assert await sources.find(db, new.name) is None
        again = await create(pool, new)
        assert again
        assert again.id != made.id


async def test_a_source_is_found_by_name_routing_key_and_id(pool: Pool[Record]) -> None:
    made = await create(pool, GENERIC)
    assert made
    async with pool.acquire() as db:
        for name in (made.name, made.routing_key, made.id):
            assert await sources.find(db, name) == made
        assert await sources.find(db, "other") is None
