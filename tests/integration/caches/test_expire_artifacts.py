"""Artifacts whose time is over: their objects go, what is said of them stays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.expire_artifacts import ExpireArtifacts, Settings
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.sweep_objects import Pass
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.errors import Gone, LeaseLost, NotFound, Unavailable
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as AllSettings
from kici.orchestrator.store import lease
from tests.support import rows, uploading

AT_ONCE = Settings(grace=timedelta(0))


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(AllSettings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def artifacts(pool: Pool[Record], objects: Objects) -> Artifacts:
    return Artifacts(pool, Parts(objects), Limits())


@pytest.fixture
async def lead(pool: Pool[Record]) -> lease.Lease:
    async with pool.acquire() as db:
        taken = await lease.acquire(db, "maintenance", "here", timedelta(minutes=1))
    assert taken
    return taken


@pytest.fixture
async def job(pool: Pool[Record], artifacts: Artifacts) -> rows.Job:
    """It has made an artifact 100 days ago, and one today."""
    made = await rows.add_job(pool, await rows.add_run(pool))
    uploads = Uploads(pool, artifacts.parts, [artifacts], part_bytes=100)
    for name in ("old", "new"):
        await uploading.send(uploads, made.job_id, 1, "artifact", name, name.encode() * 100)
    await pool.execute("update artifacts set created_at = now() - interval '100 days' where name = 'old'")
    return made


async def lying(objects: Objects) -> int:
    return len([entry async for entry in objects.list("artifacts")])


async def test_what_is_past_its_time_goes_and_whoever_asks_for_it_is_told_so(
    pool: Pool[Record], artifacts: Artifacts, objects: Objects, job: rows.Job, lead: lease.Lease
) -> None:
    sweeper = ExpireArtifacts(pool, lead, artifacts.parts, AT_ONCE)
    assert [await sweeper.run_once() for _ in range(3)] == [Pass(1, 0), Pass(0, 1), Pass(0, 0)]
    assert await lying(objects) == 3
    with pytest.raises(Gone, match=r"artifact 'old' expired on \d{4}-\d\d-\d\d: it was made on .*run its job again"):
        await artifacts.find(job.run_id, "old")
    assert (await artifacts.find(job.run_id, "new")).expired_at is None
    with pytest.raises(NotFound, match=r"it has: 'new'$"):
        await artifacts.find(job.run_id, "other")
    assert {one.name: one.expired_at is not None for one in await artifacts.of_run(job.run_id)} == {
        "old": True,
        "new": False,
    }


async def test_whoever_reads_one_that_expires_reads_it_to_its_end(
    pool: Pool[Record], artifacts: Artifacts, job: rows.Job, lead: lease.Lease
) -> None:
    found = await artifacts.find(job.run_id, "old")
    sweeper = ExpireArtifacts(pool, lead, artifacts.parts, Settings())
    assert [await sweeper.run_once() for _ in range(2)] == [Pass(1, 0), Pass(0, 0)]
    assert await artifacts.by_id(job.run_id, found.id)
    assert b"".join([piece async for piece in artifacts.read(found)]) == b"old" * 100


async def test_without_a_limit_all_stay(
    pool: Pool[Record], artifacts: Artifacts, job: rows.Job, lead: lease.Lease
) -> None:
    for_ever = Settings(ttl=None, grace=timedelta(0))
    assert await ExpireArtifacts(pool, lead, artifacts.parts, for_ever).run_once() == Pass(0, 0)
    assert await artifacts.find(job.run_id, "old")


async def test_what_a_rerun_has_taken_over_expires_with_it(
    pool: Pool[Record], artifacts: Artifacts, objects: Objects, job: rows.Job, lead: lease.Lease
) -> None:
    again = await rows.add_job(pool, await rows.add_run(pool))
    await pool.execute(
        """
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, part_bytes, sha256)
        select $1, $2, attempt, name, object_key, size_bytes, part_bytes, sha256 from artifacts where name = 'old'
        """,
        again.run_id,
        again.job_id,
    )
    sweeper = ExpireArtifacts(pool, lead, artifacts.parts, AT_ONCE)
    assert [await sweeper.run_once() for _ in range(3)] == [Pass(2, 0), Pass(0, 1), Pass(0, 0)]
    with pytest.raises(Gone):
        await artifacts.find(again.run_id, "old")


async def test_a_pass_has_its_bounds(
    pool: Pool[Record], artifacts: Artifacts, objects: Objects, job: rows.Job, lead: lease.Lease
) -> None:
    await pool.execute("update artifacts set created_at = now() - interval '100 days'")
    sweeper = ExpireArtifacts(pool, lead, artifacts.parts, Settings(grace=timedelta(0), batch=1))
    assert [await sweeper.run_once() for _ in range(4)] == [Pass(1, 0), Pass(1, 1), Pass(0, 1), Pass(0, 0)]
    assert await lying(objects) == 0


async def test_a_full_pass_is_followed_by_the_next_without_a_pause(
    pool: Pool[Record], artifacts: Artifacts, objects: Objects, job: rows.Job, lead: lease.Lease
) -> None:
    await pool.execute("update artifacts set created_at = now() - interval '100 days'")
    passes: asyncio.Queue[Pass] = asyncio.Queue()
    settings = Settings(grace=timedelta(0), batch=1, interval=timedelta(hours=1))
    sweeper = ExpireArtifacts(pool, lead, artifacts.parts, settings, on_pass=passes.put_nowait)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = group.create_task(sweeper.run())
        assert [await passes.get() for _ in range(4)] == [Pass(1, 0), Pass(1, 1), Pass(0, 1), Pass(0, 0)]
        running.cancel()
    assert await lying(objects) == 0


async def test_what_was_removed_before_the_store_went_away_is_forgotten(
    pool: Pool[Record], artifacts: Artifacts, job: rows.Job, lead: lease.Lease
) -> None:
    class GoesAway:
        def __init__(self) -> None:
            self.removed: list[str] = []

        async def remove(self, object_key: str, part_bytes: int | None) -> None:
            if self.removed:
                raise Unavailable("not now")
            self.removed.append(object_key)

    await pool.execute("update artifacts set expired_at = now() - interval '1 day'")
    going = GoesAway()
    assert await ExpireArtifacts(pool, lead, going, AT_ONCE).run_once() == Pass(0, 1)
    left = await pool.fetch("select object_key from artifacts where object_key <> ''")
    assert len(left) == 1
    assert left[0]["object_key"] not in going.removed


async def test_while_the_store_is_away_or_another_leads_nothing_is_forgotten(
    pool: Pool[Record], job: rows.Job, lead: lease.Lease
) -> None:
    class Away:
        async def remove(self, object_key: str, part_bytes: int | None) -> None:
            raise Unavailable("not now")

    sweeper = ExpireArtifacts(pool, lead, Away(), AT_ONCE)
    assert [await sweeper.run_once() for _ in range(2)] == [Pass(1, 0), Pass(0, 0)]
    assert await pool.fetchval("select object_key from artifacts where name = 'old'")
    await pool.execute("update leases set token = token + 1")
    with pytest.raises(LeaseLost):
        await sweeper.run_once()
