from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.end_uploads import EndUploads, Settings
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.errors import AttemptOver, Conflict, Invalid, NotFound, TooLarge
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as AllSettings
from kici.orchestrator.store import lease
from kici.orchestrator.store.artifacts import Artifact
from tests.support import rows, uploading

STEP = 1000


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(AllSettings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def artifacts(pool: Pool[Record], objects: Objects) -> Artifacts:
    return Artifacts(pool, Parts(objects), Limits(max_bytes=12 * STEP))


@pytest.fixture
def uploads(pool: Pool[Record], artifacts: Artifacts) -> Uploads:
    return Uploads(pool, artifacts.parts, [artifacts], part_bytes=STEP)


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    return await rows.add_job(pool, await rows.add_run(pool))


Upload = Callable[..., Awaitable[Artifact]]


@pytest.fixture
def upload(uploads: Uploads, artifacts: Artifacts) -> Upload:
    async def send(job: rows.Job, name: str, data: bytes, *, attempt: int = 1) -> Artifact:
        await uploading.send(uploads, job.job_id, attempt, "artifact", name, data)
        return await artifacts.find(job.run_id, name)

    return send


@pytest.fixture
async def sweep(pool: Pool[Record], artifacts: Artifacts) -> EndUploads:
    """Whatever is closed goes at once."""
    async with pool.acquire() as db:
        held = await lease.acquire(db, "maintenance", "here", timedelta(minutes=1))
    assert held
    return EndUploads(pool, held, artifacts.parts, Settings(keep=timedelta(0)))


async def content(artifacts: Artifacts, run_id: str, name: str) -> bytes:
    return b"".join([piece async for piece in artifacts.read(await artifacts.find(run_id, name))])


async def lying(pool: Pool[Record], objects: Objects, sweep: EndUploads) -> int:
    """Objects that are left when all that is closed has been swept."""
    await pool.execute("update uploads set expires_at = now() - interval '1 second' where state <> 'open'")
    await sweep.run_once()
    return len([entry async for entry in objects.list("artifacts")])


async def test_what_a_job_uploads_its_run_can_fetch(upload: Upload, artifacts: Artifacts, job: rows.Job) -> None:
    data = bytes(range(256)) * 40
    stored = await upload(job, "wheel-3.11", data)
    assert (stored.size_bytes, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert await content(artifacts, job.run_id, "wheel-3.11") == data
    assert [artifact.name for artifact in await artifacts.of_run(job.run_id)] == ["wheel-3.11"]


async def test_another_run_does_not_see_it(
    pool: Pool[Record], upload: Upload, artifacts: Artifacts, job: rows.Job
) -> None:
    stored = await upload(job, "wheel", b"x")
    other = await rows.add_run(pool)
    with pytest.raises(NotFound, match="it has: none"):
        await artifacts.find(other, "wheel")
    with pytest.raises(NotFound, match="any more"):
        await artifacts.by_id(other, stored.id)
    with pytest.raises(NotFound, match="it has: 'wheel'"):
        await artifacts.find(job.run_id, "Wheel")


async def test_a_name_is_given_once_in_a_run(
    pool: Pool[Record], upload: Upload, artifacts: Artifacts, objects: Objects, job: rows.Job, sweep: EndUploads
) -> None:
    other = await rows.add_job(pool, job.run_id, name="test (3.11)")
    await upload(job, "wheel", b"one")
    with pytest.raises(Conflict, match="made by job 'build'"):
        await upload(other, "wheel", b"two")
    with pytest.raises(Conflict, match="made by job 'build'"):
        await upload(job, "wheel", b"three")
    assert await lying(pool, objects, sweep) == 1
    assert await content(artifacts, job.run_id, "wheel") == b"one"


async def test_the_same_upload_sent_twice_is_one(
    pool: Pool[Record], upload: Upload, artifacts: Artifacts, objects: Objects, job: rows.Job, sweep: EndUploads
) -> None:
    first = await upload(job, "wheel", b"one")
    assert await upload(job, "wheel", b"one") == first
    assert await lying(pool, objects, sweep) == 1
    assert await content(artifacts, job.run_id, "wheel") == b"one"


async def test_of_two_jobs_at_once_one_gets_the_name(
    pool: Pool[Record],
    uploads: Uploads,
    artifacts: Artifacts,
    objects: Objects,
    job: rows.Job,
    sweep: EndUploads,
) -> None:
    jobs = [job, *[await rows.add_job(pool, job.run_id, name=f"other {number}") for number in range(5)]]
    begun = [await uploads.begin(one.job_id, 1, "artifact", "wheel") for one in jobs]

    async def finish(number: int) -> str:
        upload = begun[number].upload
        assert upload
        data = jobs[number].job_id.encode()
        await uploading.put(uploads, jobs[number].job_id, 1, upload.id, 0, data)
        try:
            await uploading.complete(uploads, jobs[number].job_id, 1, upload.id, data, 1)
        except Conflict:
            return ""
        return data.decode()

    outcomes = await asyncio.gather(*(finish(number) for number in range(6)))
    (winner,) = [one for one in outcomes if one]
    assert await lying(pool, objects, sweep) == 1
    assert await content(artifacts, job.run_id, "wheel") == winner.encode()


async def test_an_attempt_that_is_over_makes_nothing_visible(
    pool: Pool[Record],
    uploads: Uploads,
    artifacts: Artifacts,
    objects: Objects,
    job: rows.Job,
    sweep: EndUploads,
) -> None:
    begun = await uploads.begin(job.job_id, 1, "artifact", "wheel")
    assert begun.upload
    await uploading.put(uploads, job.job_id, 1, begun.upload.id, 0, b"x")
    await pool.execute("update execution_jobs set attempt = 2")
    for _ in range(2):
        with pytest.raises((AttemptOver, Conflict), match="attempt 1 of this job is over"):
            await uploading.complete(uploads, job.job_id, 1, begun.upload.id, b"x", 1)
    with pytest.raises(NotFound):
        await artifacts.find(job.run_id, "wheel")
    assert await lying(pool, objects, sweep) == 0


async def test_the_next_attempt_of_the_same_job_replaces_what_the_lost_one_left(
    pool: Pool[Record], upload: Upload, artifacts: Artifacts, objects: Objects, job: rows.Job, sweep: EndUploads
) -> None:
    await upload(job, "wheel", b"one" * STEP)
    await pool.execute("update execution_jobs set attempt = 2")
    await upload(job, "wheel", b"two", attempt=2)
    assert await lying(pool, objects, sweep) == 1
    assert await content(artifacts, job.run_id, "wheel") == b"two"


async def test_what_is_too_large_is_refused_and_not_kept(
    pool: Pool[Record], uploads: Uploads, upload: Upload, objects: Objects, job: rows.Job
) -> None:
    begun = await uploads.begin(job.job_id, 1, "artifact", "wheel")
    assert begun.upload
    with pytest.raises(TooLarge, match="larger than 12,000 bytes"):
        await uploading.put(uploads, job.job_id, 1, begun.upload.id, 12, b"x")
    with pytest.raises(TooLarge, match="larger than 12,000 bytes"):
        await uploads.urls(job.job_id, 1, begun.upload.id, 12, 1)
    assert await uploads.urls(job.job_id, 1, begun.upload.id, 10, 16) == [None, None]
    with pytest.raises(TooLarge, match="part 0 has more than 1,000 bytes"):
        await uploading.put(uploads, job.job_id, 1, begun.upload.id, 0, b"x" * STEP, b"x")
    assert [entry async for entry in objects.list("artifacts")] == []
    await upload(job, "wheel", b"x" * 12 * STEP)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "-x", " x", "a\nb", "a\0", "ä", "a.", "a ", "x" * 201]
)
async def test_a_name_that_is_none_is_refused(uploads: Uploads, job: rows.Job, name: str) -> None:
    with pytest.raises(Invalid):
        await uploads.begin(job.job_id, 1, "artifact", name)


async def test_an_artifact_of_a_version_before_parts_is_read_and_gives_way_like_any_other(
    pool: Pool[Record], upload: Upload, artifacts: Artifacts, objects: Objects, job: rows.Job, sweep: EndUploads
) -> None:
    await objects.put("artifacts/old/wheel", b"0123456789")
    await pool.execute(
        """
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
        values ($1, $2, 1, 'wheel', 'artifacts/old/wheel', 10, '')
        """,
        job.run_id,
        job.job_id,
    )
    found = await artifacts.find(job.run_id, "wheel")
    assert await content(artifacts, job.run_id, "wheel") == b"0123456789"
    assert b"".join([piece async for piece in artifacts.parts.read_part(found, 0)]) == b"0123456789"
    assert await artifacts.parts.addresses(found, 0, 16) == [None]
    await pool.execute("update execution_jobs set attempt = 2")
    await upload(job, "wheel", b"two", attempt=2)
    assert await lying(pool, objects, sweep) == 1
    assert await content(artifacts, job.run_id, "wheel") == b"two"
