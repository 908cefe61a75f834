from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.errors import AttemptOver, Conflict, Invalid, NotFound, TooLarge
from kici.orchestrator.objects.obstore_objects import ObstoreObjects, open_objects
from kici.orchestrator.settings import Settings
from tests.support import rows

MIB = 1024 * 1024


@pytest.fixture
def objects(tmp_path: Path) -> ObstoreObjects:
    return open_objects(Settings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def artifacts(pool: Pool[Record], objects: ObstoreObjects) -> Artifacts:
    return Artifacts(pool, objects, max_bytes=12 * MIB)


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    return await rows.add_job(pool, await rows.add_run(pool))


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def content(artifacts: Artifacts, run_id: str, name: str) -> bytes:
    return b"".join([piece async for piece in artifacts.read(await artifacts.find(run_id, name))])


async def kept(objects: ObstoreObjects) -> int:
    return len([entry async for entry in objects.list("artifacts")])


async def test_what_a_job_uploads_its_run_can_fetch(artifacts: Artifacts, job: rows.Job) -> None:
    data = bytes(range(256)) * 40_000
    stored = await artifacts.upload(job.run_id, job.job_id, 1, "wheel-3.11", stream(data[:MIB], data[MIB:]))
    assert (stored.size_bytes, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert await content(artifacts, job.run_id, "wheel-3.11") == data
    assert [artifact.name for artifact in await artifacts.of_run(job.run_id)] == ["wheel-3.11"]


async def test_another_run_does_not_see_it(pool: Pool[Record], artifacts: Artifacts, job: rows.Job) -> None:
    await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"x"))
    with pytest.raises(NotFound, match="it has: none"):
        await artifacts.find(await rows.add_run(pool), "wheel")
    with pytest.raises(NotFound, match="it has: 'wheel'"):
        await artifacts.find(job.run_id, "Wheel")


async def test_a_name_is_given_once_in_a_run(
    pool: Pool[Record], artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job
) -> None:
    other = await rows.add_job(pool, job.run_id, name="test (3.11)")
    await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"one"))
    with pytest.raises(Conflict, match="made by job 'build'"):
        await artifacts.upload(job.run_id, other.job_id, 1, "wheel", stream(b"two"))
    with pytest.raises(Conflict, match="made by job 'build'"):
        await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"three"))
    assert await content(artifacts, job.run_id, "wheel") == b"one"
    assert await kept(objects) == 1


async def test_the_same_upload_sent_twice_is_one(artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job) -> None:
    first = await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"one"))
    assert await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"o", b"ne")) == first
    assert await kept(objects) == 1


async def test_of_two_jobs_at_once_one_gets_the_name(
    pool: Pool[Record], artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job
) -> None:
    other = await rows.add_job(pool, job.run_id, name="other")
    both = asyncio.Barrier(2)

    async def late(data: bytes) -> AsyncIterator[bytes]:
        async with asyncio.timeout(10):
            await both.wait()
        yield data

    outcomes = await asyncio.gather(
        *(artifacts.upload(job.run_id, one.job_id, 1, "wheel", late(one.job_id.encode())) for one in (job, other)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Artifact", "Conflict"]
    assert await kept(objects) == 1


async def test_an_attempt_that_is_over_makes_nothing_visible(
    pool: Pool[Record], artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job
) -> None:
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"x"
        await pool.execute("update execution_jobs set attempt = 2")

    with pytest.raises(AttemptOver):
        await artifacts.upload(job.run_id, job.job_id, 1, "wheel", overtaken())
    with pytest.raises(NotFound):
        await artifacts.find(job.run_id, "wheel")
    assert await kept(objects) == 0


async def test_the_next_attempt_of_the_same_job_replaces_what_the_lost_one_left(
    pool: Pool[Record], artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job
) -> None:
    await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(b"one"))
    await pool.execute("update execution_jobs set attempt = 2")
    await artifacts.upload(job.run_id, job.job_id, 2, "wheel", stream(b"two"))
    assert await content(artifacts, job.run_id, "wheel") == b"two"
    assert await kept(objects) == 1


async def test_what_is_too_large_is_refused_and_not_kept(
    artifacts: Artifacts, objects: ObstoreObjects, job: rows.Job
) -> None:
    with pytest.raises(TooLarge):
        await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(*[b"x" * MIB] * 13))
    with pytest.raises(TooLarge):
        await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(), length=13 * MIB)
    assert await kept(objects) == 0
    await artifacts.upload(job.run_id, job.job_id, 1, "wheel", stream(*[b"x" * MIB] * 12))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "-x", " x", "a\nb", "a\0", "ä", "a.", "a ", "x" * 201]
)
async def test_a_name_that_is_none_is_refused(artifacts: Artifacts, job: rows.Job, name: str) -> None:
    with pytest.raises(Invalid):
        await artifacts.upload(job.run_id, job.job_id, 1, name, stream(b"x"))
