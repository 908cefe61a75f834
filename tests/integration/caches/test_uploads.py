"""Upload sessions: what is refused, what may be asked twice, and what is left of one that nobody completes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches import parts
from kici.orchestrator.caches.end_uploads import EndUploads, Settings
from kici.orchestrator.caches.entries import Caches, Limits
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.sweep_objects import Pass
from kici.orchestrator.caches.uploads import MAX_UNPUBLISHED, Outcome, Uploads
from kici.orchestrator.errors import Conflict, Invalid, LeaseLost, NotFound, TooLarge, Unavailable
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as AllSettings
from kici.orchestrator.store import lease
from tests.support import rows, uploading

STEP = 100


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(AllSettings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def caches(pool: Pool[Record], objects: Objects) -> Caches:
    return Caches(pool, Parts(objects), Limits(quota_bytes=1_000))


@pytest.fixture
def uploads(pool: Pool[Record], caches: Caches) -> Uploads:
    return Uploads(pool, caches.parts, [caches], part_bytes=STEP)


@pytest.fixture
async def job(pool: Pool[Record]) -> str:
    return (await rows.add_job(pool, await rows.add_run(pool))).job_id


@pytest.fixture
async def upload_id(uploads: Uploads, job: str) -> str:
    begun = await uploads.begin(job, 1, "cache", "k")
    assert begun.upload
    return begun.upload.id


@pytest.fixture
async def lead(pool: Pool[Record]) -> lease.Lease:
    async with pool.acquire() as db:
        taken = await lease.acquire(db, "maintenance", "here", timedelta(minutes=1))
    assert taken
    return taken


async def lying(objects: Objects) -> list[str]:
    return [entry.key async for entry in objects.list("caches")]


async def read(caches: Caches, job: str, key: str = "k") -> bytes | None:
    found = await caches.find(job, 1, key)
    return None if found is None else b"".join([piece async for piece in caches.read(found)])


async def test_a_job_leaves_no_more_unpublished_than_two_entries_whatever_it_begins(
    pool: Pool[Record], uploads: Uploads, objects: Objects, job: str
) -> None:
    """Of 1,000 bytes each, in parts of 100: sessions that are never completed, or given up, or taken."""
    with pytest.raises(Conflict, match=r"has sent 2,\d00 bytes .* 2,000.*KICI_USER_CACHE_QUOTA_BYTES"):
        for number in range(30):
            begun = await uploads.begin(job, 1, "cache", f"k{number}")
            assert begun.upload
            for part in range(10):
                await uploading.put(uploads, job, 1, begun.upload.id, part, b"x" * STEP)
            if number % 2:
                await uploads.abandon(job, 1, begun.upload.id)
    assert 2_000 <= sum([entry.size async for entry in objects.list("caches")]) <= 2_300
    other = (await rows.add_job(pool, await rows.add_run(pool))).job_id
    assert (await uploads.begin(other, 1, "cache", "k")).upload


async def test_what_is_kept_does_not_count_for_what_is_not(uploads: Uploads, caches: Caches, job: str) -> None:
    for number in range(5):
        assert (await uploading.send(uploads, job, 1, "cache", f"k{number}", b"x" * 1_000)).kept
    assert await read(caches, job, "k4") == b"x" * 1_000


async def test_parts_may_come_in_any_order_and_twice(
    uploads: Uploads, caches: Caches, job: str, upload_id: str
) -> None:
    await uploading.put(uploads, job, 1, upload_id, 1, b"b" * 50)
    await uploading.put(uploads, job, 1, upload_id, 0, b"wrong")
    await uploading.put(uploads, job, 1, upload_id, 0, b"a" * 100)
    data = b"a" * 100 + b"b" * 50
    assert await uploading.complete(uploads, job, 1, upload_id, data, 2) == Outcome(True)
    assert await read(caches, job) == data


async def test_completed_twice_is_once(
    pool: Pool[Record], uploads: Uploads, caches: Caches, job: str, upload_id: str
) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"x")
    assert [await uploading.complete(uploads, job, 1, upload_id, b"x", 1) for _ in range(3)] == [Outcome(True)] * 3
    assert await pool.fetchval("select count(*) from caches") == 1


async def test_a_refusal_is_the_same_when_it_is_asked_for_again(
    uploads: Uploads, caches: Caches, job: str, upload_id: str
) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"late")
    assert (await uploading.send(uploads, job, 1, "cache", "k", b"first")).kept
    for _ in range(2):
        outcome = await uploading.complete(uploads, job, 1, upload_id, b"late", 1)
        assert (outcome.kept, outcome.reason) == (False, "there is an entry of that key already")
    assert await read(caches, job) == b"first"


async def test_what_does_not_lie_there_as_announced_is_not_published_and_can_be_sent_again(
    uploads: Uploads, caches: Caches, job: str, upload_id: str
) -> None:
    data = b"a" * 250
    await uploading.put(uploads, job, 1, upload_id, 0, data[:100])
    await uploading.put(uploads, job, 1, upload_id, 2, data[200:])
    with pytest.raises(Invalid, match="part 1 is missing of 100 bytes"):
        await uploading.complete(uploads, job, 1, upload_id, data, 3)
    await uploading.put(uploads, job, 1, upload_id, 1, data[100:199])
    with pytest.raises(Invalid, match="part 1 has 99 bytes of 100 bytes"):
        await uploading.complete(uploads, job, 1, upload_id, data, 3)
    with pytest.raises(Invalid, match="250 bytes do not lie in 2 parts"):
        await uploading.complete(uploads, job, 1, upload_id, data, 2)
    with pytest.raises(Invalid, match="sha256"):
        await uploads.complete(job, 1, upload_id, 250, "0" * 63, 3)
    assert await read(caches, job) is None
    await uploading.put(uploads, job, 1, upload_id, 1, data[100:200])
    assert (await uploading.complete(uploads, job, 1, upload_id, data, 3)).kept
    assert await read(caches, job) == data


async def test_what_lies_there_too_much_is_not_read_and_goes_with_the_entry(
    pool: Pool[Record], uploads: Uploads, caches: Caches, objects: Objects, job: str, upload_id: str
) -> None:
    for number in range(3):
        await uploading.put(uploads, job, 1, upload_id, number, b"x" * 100)
    assert (await uploading.complete(uploads, job, 1, upload_id, b"x" * 100, 1)).kept
    assert await read(caches, job) == b"x" * 100
    await caches.parts.remove(await pool.fetchval("select object_key from caches"), STEP)
    assert await lying(objects) == []


@pytest.mark.parametrize("number", [10, 1_000_000])
async def test_a_part_beyond_the_limit_is_refused(uploads: Uploads, job: str, upload_id: str, number: int) -> None:
    with pytest.raises(TooLarge, match="larger than 1,000 bytes"):
        await uploading.put(uploads, job, 1, upload_id, number, b"x")
    with pytest.raises(TooLarge, match="larger than 1,000 bytes"):
        await uploads.urls(job, 1, upload_id, number, 1)


async def test_a_part_has_a_number_from_0_and_at_most_so_many_bytes(
    uploads: Uploads, objects: Objects, job: str, upload_id: str
) -> None:
    with pytest.raises(Invalid, match="from 0"):
        await uploading.put(uploads, job, 1, upload_id, -1, b"x")
    with pytest.raises(TooLarge, match="more than 100 bytes"):
        await uploading.put(uploads, job, 1, upload_id, 0, b"x" * 60, b"x" * 60)
    assert await lying(objects) == []


async def test_a_part_that_breaks_off_is_not_there(
    uploads: Uploads, objects: Objects, job: str, upload_id: str
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the cable was pulled")

    with pytest.raises(OSError, match="cable"):
        await uploads.put(job, 1, upload_id, 0, broken())
    assert await lying(objects) == []


async def test_a_part_that_does_not_come_to_its_end_is_not_waited_for(
    uploads: Uploads, objects: Objects, job: str, upload_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"half"
        await asyncio.Event().wait()

    monkeypatch.setattr(parts, "PART_LASTS", timedelta(milliseconds=10))
    with pytest.raises(Unavailable, match="part 0 did not come within"):
        await uploads.put(job, 1, upload_id, 0, endless())
    assert await lying(objects) == []


async def test_of_another_attempt_and_of_another_job_there_is_no_such_upload(
    pool: Pool[Record], uploads: Uploads, job: str, upload_id: str
) -> None:
    other = (await rows.add_job(pool, await rows.add_run(pool))).job_id
    for who, attempt in ((other, 1), (job, 2)):
        for asking in (
            uploading.put(uploads, who, attempt, upload_id, 0, b"x"),
            uploads.urls(who, attempt, upload_id, 0, 1),
            uploading.complete(uploads, who, attempt, upload_id, b"", 0),
            uploads.abandon(who, attempt, upload_id),
        ):
            with pytest.raises(NotFound, match="begin a new one"):
                await asking


async def test_nothing_is_taken_after_the_end(uploads: Uploads, caches: Caches, job: str, upload_id: str) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"x")
    await uploading.complete(uploads, job, 1, upload_id, b"x", 1)
    with pytest.raises(Conflict, match="closed: it was completed"):
        await uploading.put(uploads, job, 1, upload_id, 0, b"y")
    with pytest.raises(Conflict, match="closed: it was completed"):
        await uploads.urls(job, 1, upload_id, 0, 1)
    await uploads.abandon(job, 1, upload_id)
    assert await read(caches, job) == b"x"


async def test_what_was_given_up_stays_so(uploads: Uploads, caches: Caches, job: str, upload_id: str) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"x")
    await uploads.abandon(job, 1, upload_id)
    outcome = await uploading.complete(uploads, job, 1, upload_id, b"x", 1)
    assert (outcome.kept, outcome.reason) == (False, "it was given up")
    assert await read(caches, job) is None


async def test_one_past_its_time_is_closed_and_its_objects_go_a_while_later(
    pool: Pool[Record],
    uploads: Uploads,
    caches: Caches,
    objects: Objects,
    job: str,
    upload_id: str,
    lead: lease.Lease,
) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"x")
    sweeper = EndUploads(pool, lead, caches.parts, Settings())
    assert await sweeper.run_once() == Pass(0, 0)
    await pool.execute("update uploads set expires_at = now() - interval '1 second'")
    with pytest.raises(Conflict, match="it took too long"):
        await uploading.put(uploads, job, 1, upload_id, 1, b"x")
    outcome = await uploading.complete(uploads, job, 1, upload_id, b"x", 1)
    assert (outcome.kept, outcome.reason) == (False, "it took too long")
    assert await sweeper.run_once() == Pass(1, 0)
    assert await sweeper.run_once() == Pass(0, 0)  # an address that was signed before may still be valid
    assert len(await lying(objects)) == 1
    await pool.execute("update uploads set expires_at = now() - interval '1 second'")
    assert await sweeper.run_once() == Pass(0, 1)
    assert await lying(objects) == []
    assert await pool.fetchval("select count(*) from uploads") == 0


async def test_what_is_published_outlives_its_session(
    pool: Pool[Record], uploads: Uploads, caches: Caches, job: str, upload_id: str, lead: lease.Lease
) -> None:
    await uploading.put(uploads, job, 1, upload_id, 0, b"x")
    await uploading.complete(uploads, job, 1, upload_id, b"x", 1)
    await pool.execute("update uploads set expires_at = now() - interval '1 second'")
    assert await EndUploads(pool, lead, caches.parts, Settings()).run_once() == Pass(0, 1)
    assert await read(caches, job) == b"x"


async def test_while_the_store_is_away_the_rows_stay(
    pool: Pool[Record], uploads: Uploads, job: str, upload_id: str, lead: lease.Lease
) -> None:
    class Away:
        def __init__(self) -> None:
            self.away = True

        async def remove(self, object_key: str, part_bytes: int | None) -> None:
            if self.away:
                raise Unavailable("not now")

    await uploads.abandon(job, 1, upload_id)
    await pool.execute("update uploads set expires_at = now() - interval '1 second'")
    away = Away()
    sweeper = EndUploads(pool, lead, away, Settings())
    assert await sweeper.run_once() == Pass(0, 0)
    away.away = False
    assert await sweeper.run_once() == Pass(0, 1)


async def test_who_does_not_lead_removes_nothing(
    pool: Pool[Record], uploads: Uploads, caches: Caches, job: str, upload_id: str, lead: lease.Lease
) -> None:
    await pool.execute("update uploads set expires_at = now() - interval '1 second'")
    await pool.execute("update leases set token = token + 1")
    with pytest.raises(LeaseLost):
        await EndUploads(pool, lead, caches.parts, Settings()).run_once()
    assert await pool.fetchval("select state from uploads") == "open"


async def test_a_job_that_completes_nothing_cannot_begin_for_ever(
    pool: Pool[Record], objects: Objects, job: str
) -> None:
    large = Caches(pool, Parts(objects), Limits())
    uploads = Uploads(pool, large.parts, [large], part_bytes=STEP)
    for number in range(MAX_UNPUBLISHED):
        begun = await uploads.begin(job, 1, "cache", f"k{number}")
        assert begun.upload
        await uploads.abandon(job, 1, begun.upload.id)
    with pytest.raises(Conflict, match="100 uploads that it has not completed"):
        await uploads.begin(job, 1, "cache", "k")


async def test_an_entry_that_changed_in_the_store_is_damaged_whatever_its_parts_say(
    pool: Pool[Record], uploads: Uploads, caches: Caches, objects: Objects, job: str
) -> None:
    data = bytes(range(250))
    for number, damage in enumerate((b"x" * 100, b"x" * 99, b"x" * 101, None)):
        await uploading.send(uploads, job, 1, "cache", f"k{number}", data)
        found = await caches.find(job, 1, f"k{number}")
        assert found
        assert (found.size_bytes, found.sha256) == (250, hashlib.sha256(data).hexdigest())
        assert not await caches.is_damaged(job, 1, found.id)
        if damage is None:
            await objects.delete(f"{found.object_key}/1")
        else:
            await objects.put(f"{found.object_key}/1", damage)
        assert await caches.is_damaged(job, 1, found.id)
        assert await caches.find(job, 1, f"k{number}") is None
