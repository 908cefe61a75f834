"""Limits of artifacts: how many a run may have, and how many bytes those of a repository may take, also while they are
sent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.errors import Conflict, NotFound
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as AllSettings
from kici.orchestrator.store import artifact_quota, reuse
from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import transaction
from tests.support import rows, uploading
from tests.support.services import until

STEP = 1000
QUOTA = 40 * STEP
LIMITS = Limits(max_bytes=30 * STEP, per_run=3, quota_bytes=QUOTA)
DEMO = Owner("", "local/demo")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(AllSettings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def artifacts(pool: Pool[Record], objects: Objects) -> Artifacts:
    return Artifacts(pool, Parts(objects), LIMITS)


@pytest.fixture
def uploads(pool: Pool[Record], artifacts: Artifacts) -> Uploads:
    return uploads_of(pool, artifacts)


def uploads_of(pool: Pool[Record], artifacts: Artifacts) -> Uploads:
    return Uploads(pool, artifacts.parts, [artifacts], part_bytes=STEP)


async def new_job(pool: Pool[Record], *, repository: str = "local/demo", pull_request: int = 0) -> rows.Job:
    event = {"type": "pull_request", "prNumber": pull_request} if pull_request else {"type": "push", "branch": "main"}
    return await rows.add_job(pool, await rows.add_run(pool, repo_identifier=repository, event=event))


async def send(uploads: Uploads, job: rows.Job, name: str, steps: int) -> None:
    await uploading.send(uploads, job.job_id, 1, "artifact", name, b"x" * steps * STEP)


async def begin(uploads: Uploads, job: rows.Job, name: str) -> str:
    begun = await uploads.begin(job.job_id, 1, "artifact", name)
    assert begun.upload
    return begun.upload.id


async def at_once(pool: Pool[Record], *works: Coroutine[Any, Any, Any]) -> list[Any]:
    """Their results or errors, once all had come as far as the lock of the repository's artifacts."""

    async def all_wait() -> bool:
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        return int(await pool.fetchval(waiting)) == len(works)

    tasks: list[asyncio.Task[Any]] = []
    try:
        async with transaction(pool) as db:
            await artifact_quota.lock(db, DEMO)  # before any of them can
            tasks += [asyncio.create_task(work) for work in works]
            await until(all_wait)
    finally:
        done = await asyncio.gather(*tasks, return_exceptions=True)
    return done


async def lying(objects: Objects) -> int:
    """Bytes of all parts in the store."""
    return sum([entry.size async for entry in objects.list("artifacts")])


# ── how many ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_has_so_many_artifacts_and_no_more(pool: Pool[Record], uploads: Uploads) -> None:
    job = await new_job(pool)
    other = await rows.add_job(pool, job.run_id, name="other")
    for number in range(3):
        await send(uploads, (job, other)[number % 2], f"one-{number}", 1)
    with pytest.raises(Conflict, match=r"'more' was refused: the run has 3 artifacts.*KICI_ARTIFACTS_PER_RUN"):
        await uploads.begin(other.job_id, 1, "artifact", "more")
    await send(uploads, await new_job(pool), "more", 1)


async def test_a_full_run_lets_a_later_attempt_replace_what_its_job_has_made(
    pool: Pool[Record], uploads: Uploads, artifacts: Artifacts
) -> None:
    job = await new_job(pool)
    for number in range(3):
        await send(uploads, job, f"one-{number}", 1)
    await pool.execute("update execution_jobs set attempt = 2")
    await uploading.send(uploads, job.job_id, 2, "artifact", "one-1", b"again")
    assert (await artifacts.find(job.run_id, "one-1")).size_bytes == 5


async def test_of_many_uploads_that_end_at_once_only_so_many_are_kept(
    pool: Pool[Record], uploads: Uploads, artifacts: Artifacts
) -> None:
    job = await new_job(pool)
    begun = [await begin(uploads, job, f"one-{number}") for number in range(6)]
    for upload_id in begun:
        await uploading.put(uploads, job.job_id, 1, upload_id, 0, b"x")
    ends = await at_once(pool, *(uploading.complete(uploads, job.job_id, 1, upload_id, b"x", 1) for upload_id in begun))
    assert [str(end) for end in ends if isinstance(end, BaseException) and "has 3 artifacts" not in str(end)] == []
    assert len(await artifacts.of_run(job.run_id)) == 3


# ── how many bytes ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_over_the_quota_an_upload_is_refused_with_the_limit_what_is_used_and_the_way_out(
    pool: Pool[Record], uploads: Uploads
) -> None:
    await send(uploads, await new_job(pool), "first", 20)
    await send(uploads, await new_job(pool), "second", 20)
    with pytest.raises(Conflict) as refused:
        await begin(uploads, await new_job(pool), "third")
    assert str(refused.value) == (
        "artifact 'third' was refused: the artifacts of local/demo may take 40,000 bytes, and take 40,000: room comes"
        " when older ones expire; operators raise KICI_ARTIFACT_QUOTA_BYTES or shorten KICI_ARTIFACT_TTL_MS"
    )


async def test_another_repository_has_a_quota_of_its_own(pool: Pool[Record], uploads: Uploads) -> None:
    for name in ("first", "second"):
        await send(uploads, await new_job(pool), name, 20)
    await send(uploads, await new_job(pool, repository="local/other"), "third", 20)
    other_source = await rows.add_job(pool, await rows.add_run(pool, routing_key="github:2"))
    await send(uploads, other_source, "third", 20)


async def test_what_has_expired_makes_room_once_its_objects_are_gone(pool: Pool[Record], uploads: Uploads) -> None:
    for name in ("first", "second"):
        await send(uploads, await new_job(pool), name, 20)
    await pool.execute("update artifacts set expired_at = now() where name = 'first'")
    with pytest.raises(Conflict, match="and take 40,000"):
        await begin(uploads, await new_job(pool), "third")
    await pool.execute("update artifacts set object_key = '' where name = 'first'")
    await send(uploads, await new_job(pool), "third", 20)


async def test_what_a_rerun_has_taken_over_counts_once(pool: Pool[Record], uploads: Uploads) -> None:
    job = await new_job(pool)
    await send(uploads, job, "first", 20)
    again = await rows.add_job(pool, await rows.add_run(pool), steps=())
    async with transaction(pool) as db:
        await reuse.take_over(db, {again.job_id: job.job_id})
        assert (await artifact_quota.kept(db, DEMO, None)).total == 20 * STEP
    await pool.execute("delete from artifacts where run_id = $1", job.run_id)
    async with transaction(pool) as db:
        assert (await artifact_quota.kept(db, DEMO, None)).total == 20 * STEP


async def test_of_two_uploads_that_end_at_once_only_what_fits_is_kept(
    pool: Pool[Record], objects: Objects, artifacts: Artifacts
) -> None:
    """Both have sent all before the quota was lowered, so that nothing but the last check stands between."""
    generous = uploads_of(pool, artifacts)
    jobs = [await new_job(pool) for _ in range(2)]
    begun = [await begin(generous, job, "wheel") for job in jobs]
    data = b"x" * 15 * STEP
    for job, upload_id in zip(jobs, begun, strict=True):
        await uploading.send_parts(generous, job.job_id, 1, upload_id, data, STEP)
    strict = uploads_of(pool, Artifacts(pool, Parts(objects), Limits(20 * STEP, 3, 20 * STEP)))
    ends = await at_once(
        pool,
        *(
            uploading.complete(strict, job.job_id, 1, upload_id, data, 15)
            for job, upload_id in zip(jobs, begun, strict=True)
        ),
    )
    (refused,) = [end for end in ends if isinstance(end, BaseException)]
    assert isinstance(refused, Conflict)
    assert "artifact 'wheel' of 15,000 bytes was refused: the artifacts of local/demo may take 20,000" in str(refused)
    loser = ends.index(refused)
    with pytest.raises(NotFound):
        await artifacts.find(jobs[loser].run_id, "wheel")
    with pytest.raises(Conflict, match="of 15,000 bytes was refused"):
        await uploading.complete(strict, jobs[loser].job_id, 1, begun[loser], data, 15)
    assert (await artifacts.find(jobs[1 - loser].run_id, "wheel")).size_bytes == len(data)


# ── what is being sent ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_uploads_that_nobody_completes_never_fill_the_store_beyond_the_quota(
    pool: Pool[Record], uploads: Uploads, objects: Objects
) -> None:
    job = await new_job(pool)
    refused: list[str] = []

    async def fill(number: int) -> None:
        try:
            upload_id = await begin(uploads, job, f"one-{number}")
            for part in range(30):
                await uploading.put(uploads, job.job_id, 1, upload_id, part, b"x" * STEP)
        except Conflict as error:
            refused.append(str(error))

    await asyncio.gather(*(fill(number) for number in range(6)))
    assert await lying(objects) <= QUOTA
    assert refused
    assert all("bytes more are being sent or not yet removed" in why or "40,000 more" in why for why in refused), (
        refused
    )
    with pytest.raises(Conflict, match="40,000 more are being sent"):
        await begin(uploads, await new_job(pool), "other")


async def test_of_two_uploads_that_ask_for_the_same_room_one_gets_it(pool: Pool[Record], uploads: Uploads) -> None:
    await send(uploads, await new_job(pool), "first", 28)
    jobs = [await new_job(pool) for _ in range(2)]
    begun = [await begin(uploads, job, "second") for job in jobs]
    given = await at_once(
        pool,
        *(uploads.urls(job.job_id, 1, upload_id, 4, 8) for job, upload_id in zip(jobs, begun, strict=True)),
    )
    (refused,) = [one for one in given if isinstance(one, BaseException)]
    assert isinstance(refused, Conflict)
    assert "'second' was refused: the artifacts of local/demo may take 40,000 bytes, and take 28,000" in str(refused)
    assert [len(one) for one in given if isinstance(one, list)] == [4]


async def test_signed_addresses_are_given_for_no_more_than_what_there_is_room_for(
    pool: Pool[Record], uploads: Uploads
) -> None:
    await send(uploads, await new_job(pool), "first", 22)
    job = await new_job(pool)
    upload_id = await begin(uploads, job, "second")
    assert len(await uploads.urls(job.job_id, 1, upload_id, 0, 4)) == 4
    assert len(await uploads.urls(job.job_id, 1, upload_id, 4, 10)) == 10
    assert len(await uploads.urls(job.job_id, 1, upload_id, 14, 16)) == 4
    with pytest.raises(Conflict, match=r"'second' was refused.*take 22,000, 18,000 more"):
        await uploads.urls(job.job_id, 1, upload_id, 18, 16)
    with pytest.raises(Conflict, match=r"'second' was refused.*take 22,000, 18,000 more"):
        await uploading.put(uploads, job.job_id, 1, upload_id, 25, b"x")


async def test_what_was_given_up_counts_until_its_objects_are_gone(pool: Pool[Record], uploads: Uploads) -> None:
    job = await new_job(pool)
    for number in range(2):
        upload_id = await begin(uploads, job, f"one-{number}")
        await uploading.send_parts(uploads, job.job_id, 1, upload_id, b"x" * 20 * STEP, STEP)
        await uploads.abandon(job.job_id, 1, upload_id)
    with pytest.raises(Conflict, match="40,000 more are being sent or not yet removed"):
        await begin(uploads, job, "again")
    await pool.execute("delete from uploads")
    await send(uploads, job, "again", 20)


async def test_what_was_published_is_not_counted_as_being_sent_too(pool: Pool[Record], uploads: Uploads) -> None:
    for number in range(4):
        await send(uploads, await new_job(pool), f"one-{number}", 10)
    async with transaction(pool) as db:
        assert await artifact_quota.sending(db, DEMO, None) == artifact_quota.Bytes(0, 0, 0)
        assert (await artifact_quota.kept(db, DEMO, None)).total == QUOTA


# ── pull requests ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pull_request_leaves_room_for_others_and_all_of_them_for_the_repository(
    pool: Pool[Record], uploads: Uploads
) -> None:
    await send(uploads, await new_job(pool, pull_request=7), "one", 10)
    with pytest.raises(Conflict, match="artifacts of pull request 7 of local/demo may take 10,000 bytes, and take 10,"):
        await begin(uploads, await new_job(pool, pull_request=7), "two")
    await send(uploads, await new_job(pool, pull_request=8), "one", 10)
    with pytest.raises(
        Conflict, match="of local/demo that pull requests have made may take 20,000 bytes, and take 20,"
    ):
        await begin(uploads, await new_job(pool, pull_request=9), "one")
    await send(uploads, await new_job(pool), "one", 20)


async def test_what_a_pull_request_is_sending_leaves_that_room_too(pool: Pool[Record], uploads: Uploads) -> None:
    for pull_request in (7, 8):
        job = await new_job(pool, pull_request=pull_request)
        upload_id = await begin(uploads, job, "one")
        for number in range(10):
            await uploading.put(uploads, job.job_id, 1, upload_id, number, b"x" * STEP)
        with pytest.raises(Conflict, match=r"pull request.*more are being sent or not yet removed"):
            await uploading.put(uploads, job.job_id, 1, upload_id, 10, b"x" * STEP)
    with pytest.raises(Conflict, match="that pull requests have made"):
        await begin(uploads, await new_job(pool, pull_request=9), "one")
    await send(uploads, await new_job(pool), "one", 20)


async def test_where_the_repository_itself_has_taken_all_pull_requests_have_nothing(
    pool: Pool[Record], uploads: Uploads
) -> None:
    for name in ("one", "two"):
        await send(uploads, await new_job(pool), name, 20)
    with pytest.raises(Conflict, match="the artifacts of local/demo may take 40,000"):
        await begin(uploads, await new_job(pool, pull_request=7), "three")
