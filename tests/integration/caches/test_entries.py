from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.caches.entries import Caches, Limits
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.sweep_caches import Settings, SweepCaches
from kici.orchestrator.caches.sweep_objects import Pass
from kici.orchestrator.caches.uploads import Outcome, Uploads
from kici.orchestrator.errors import AttemptOver, Invalid, LeaseLost, TooLarge, Unavailable
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as AllSettings
from kici.orchestrator.store import lease
from tests.support import rows, uploading

KEPT, TAKEN = Outcome(True), Outcome(False, "there is an entry of that key already")
AT_ONCE = Settings(grace=timedelta(0))


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(AllSettings(storage_fs_path=tmp_path / "objects"))


@pytest.fixture
def stored(objects: Objects) -> Parts:
    return Parts(objects)


@pytest.fixture
def caches(pool: Pool[Record], stored: Parts) -> Caches:
    return Caches(pool, stored, Limits(quota_bytes=1_000))


@pytest.fixture
async def lead(pool: Pool[Record]) -> lease.Lease:
    async with pool.acquire() as db:
        taken = await lease.acquire(db, "maintenance", "here", timedelta(minutes=1))
    assert taken
    return taken


class Job:
    """A running job of a branch of a repository, or of a pull request to it, that finds and saves."""

    def __init__(self, pool: Pool[Record], caches: Caches, job_id: str) -> None:
        self.caches = caches
        self.uploads = Uploads(pool, caches.parts, [caches], part_bytes=100)
        self.id = job_id

    async def save(self, key: str, data: bytes = b"x", *, attempt: int = 1) -> Outcome:
        return await uploading.send(self.uploads, self.id, attempt, "cache", key, data)

    async def find(self, key: str, *prefixes: str) -> str | None:
        found = await self.caches.find(self.id, 1, key, prefixes)
        return None if found is None else found.key

    async def read(self, key: str) -> bytes:
        found = await self.caches.find(self.id, 1, key)
        assert found
        return b"".join([piece async for piece in self.caches.read(found)])


async def add_job(
    pool: Pool[Record],
    caches: Caches,
    *,
    repository: str = "team/app",
    source: str = "github:a",
    branch: str = "main",
    pr: int = 0,
) -> Job:
    """`branch`: of a pull request the one that it goes to."""
    event: dict[str, object] = {"type": "push", "branch": branch}
    if pr:
        event = {"type": "pull_request", "prNumber": pr, "branch": "main", "baseBranch": branch}
    run_id = await rows.add_run(pool, repo_identifier=repository, routing_key=source, event=event)
    return Job(pool, caches, (await rows.add_job(pool, run_id)).job_id)


@pytest.fixture
async def job(pool: Pool[Record], caches: Caches) -> Job:
    return await add_job(pool, caches)


async def lying(objects: Objects) -> int:
    return len([entry async for entry in objects.list("caches")])


async def keys(pool: Pool[Record]) -> list[str]:
    found = await pool.fetch("select scope || ':' || key as name from caches where state = 'ready' order by 1")
    return [row["name"] for row in found]


async def used(pool: Pool[Record], *order: str) -> None:
    """The first one longest ago."""
    for age, key in enumerate(reversed(order), 1):
        await pool.execute("update caches set used_at = now() - $2 * interval '1 hour' where key = $1", key, age)


# ── finding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_later_job_of_the_repository_finds_what_was_saved(pool: Pool[Record], caches: Caches, job: Job) -> None:
    data = bytes(range(250)) * 3
    assert await job.save("uv-linux-1", data) == KEPT
    later = await add_job(pool, caches)
    assert await later.read("uv-linux-1") == data
    assert await later.find("uv-linux-2") is None
    assert (await job.uploads.begin(job.id, 1, "cache", "uv-linux-1")).upload is None


async def test_the_exact_key_wins_then_the_newest_of_the_first_prefix_that_finds_one(
    pool: Pool[Record], job: Job
) -> None:
    for number, key in enumerate(("uv-linux-old", "uv-linux-new", "uv-mac", "npm-1", "uv_x")):
        await job.save(key)
        await pool.execute("update caches set created_at = now() + $2 * interval '1 s' where key = $1", key, number)
    assert await job.find("uv-linux-old", "uv-") == "uv-linux-old"
    assert await job.find("uv-linux-x", "uv-linux-", "npm-") == "uv-linux-new"
    assert await job.find("uv-linux-x", "pip-", "npm-", "uv-") == "npm-1"
    assert await job.find("none", "none-", "%", "uv-linux_") is None


async def test_another_repository_and_another_source_of_the_same_name_find_nothing(
    pool: Pool[Record], caches: Caches, job: Job
) -> None:
    await job.save("k")
    for other in ({"repository": "team/other"}, {"source": "github:b"}):
        stranger = await add_job(pool, caches, **other)  # type: ignore[arg-type]
        assert await stranger.find("k", "k") is None
        assert await stranger.save("k", b"theirs") == KEPT
    assert await job.read("k") == b"x"


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a\x00", "k" * 513])
async def test_a_key_is_printable_and_short(job: Job, key: str) -> None:
    with pytest.raises(Invalid, match="key:"):
        await job.save(key)
    with pytest.raises(Invalid, match="restore:"):
        await job.find("k", key)


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pull_request_reads_the_repositorys_and_its_own_and_writes_only_its_own(
    pool: Pool[Record], caches: Caches, job: Job
) -> None:
    await job.save("k", b"trusted")
    attacker, other = await add_job(pool, caches, pr=7), await add_job(pool, caches, pr=8)
    assert await attacker.read("k") == b"trusted"
    assert await attacker.save("k", b"poison") == KEPT
    assert await attacker.save("new", b"poison") == KEPT
    assert await attacker.read("k") == b"poison"
    again = await add_job(pool, caches, pr=7)
    assert await again.read("new") == b"poison"
    for sees in (job, other):
        assert await sees.read("k") == b"trusted"
        assert await sees.find("new", "n") is None
    assert await job.save("new", b"honest") == KEPT


async def test_a_branch_reads_its_own_then_that_of_the_default_branch_and_writes_only_its_own(
    pool: Pool[Record], caches: Caches, job: Job
) -> None:
    branch, other = await add_job(pool, caches, branch="feature"), await add_job(pool, caches, branch="other")
    await job.save("k", b"main's")
    assert await branch.read("k") == b"main's"
    assert await branch.save("k", b"the branch's") == KEPT
    assert await branch.save("new") == KEPT
    assert await branch.read("k") == b"the branch's"
    assert await (await add_job(pool, caches, branch="feature")).read("k") == b"the branch's"
    for sees in (job, other):
        assert await sees.read("k") == b"main's"
        assert await sees.find("new", "n") is None
    assert await keys(pool) == [":k", "heads/feature:k", "heads/feature:new"]


async def test_a_pull_request_reads_what_the_branch_keeps_that_it_goes_to(
    pool: Pool[Record], caches: Caches, job: Job
) -> None:
    release = await add_job(pool, caches, branch="release")
    for saves, key in ((release, "uv-1"), (release, "k"), (job, "k"), (job, "uv-2")):
        await saves.save(key, key.encode() + (b" of release" if saves is release else b" of main"))
    to_release, to_main = await add_job(pool, caches, branch="release", pr=7), await add_job(pool, caches, pr=8)
    assert await to_release.read("k") == b"k of release"
    assert await to_main.read("k") == b"k of main"
    assert await to_release.find("none", "uv-") == "uv-1"
    assert await to_release.find("uv-2", "uv-") == "uv-2"
    assert await to_main.find("none", "uv-") == "uv-2"
    await to_release.save("uv-3")
    assert await to_release.find("none", "uv-") == "uv-3"
    assert await release.find("none", "uv-") == "uv-1"


async def test_room_is_made_by_pull_requests_first_and_then_by_whatever_branch_has_not_used_its_entry(
    pool: Pool[Record], caches: Caches, job: Job
) -> None:
    branch, attacker = await add_job(pool, caches, branch="pr-9"), await add_job(pool, caches, pr=7)
    await job.save("old", b"x" * 300)
    await branch.save("mine", b"x" * 300)
    await attacker.save("theirs", b"x" * 300)
    await used(pool, "old", "mine", "theirs")
    assert not (await attacker.save("more", b"x" * 500)).kept  # the entries of a branch are not theirs to evict
    assert await branch.save("a", b"x" * 300) == KEPT
    assert await keys(pool) == [":old", "heads/pr-9:a", "heads/pr-9:mine"]
    assert await branch.save("b", b"x" * 300) == KEPT
    assert await keys(pool) == ["heads/pr-9:a", "heads/pr-9:b", "heads/pr-9:mine"]


async def test_a_pull_request_evicts_nothing_of_the_repository(pool: Pool[Record], caches: Caches, job: Job) -> None:
    await job.save("a", b"x" * 600)
    attacker, other = await add_job(pool, caches, pr=7), await add_job(pool, caches, pr=8)
    assert await other.save("b", b"x" * 300) == KEPT
    assert await attacker.save("c", b"x" * 350) == KEPT
    assert await keys(pool) == [":a", "pr-7:c"]
    refused = await attacker.save("d", b"x" * 500)
    assert (refused.kept, refused.reason) == (False, "what the repository itself keeps leaves no room for it")
    assert await keys(pool) == [":a", "pr-7:c"]
    assert await job.save("e", b"x" * 300) == KEPT
    assert await keys(pool) == [":a", ":e"]


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_one_wins_and_an_entry_never_changes(pool: Pool[Record], caches: Caches, job: Job) -> None:
    assert await job.save("k", b"first") == KEPT
    assert await (await add_job(pool, caches)).save("k", b"second") == TAKEN
    assert await job.read("k") == b"first"


async def test_of_many_that_save_one_key_at_once_one_wins_whole(pool: Pool[Record], caches: Caches) -> None:
    jobs = [await add_job(pool, caches) for _ in range(8)]
    saved = await asyncio.gather(*(one.save("k", bytes([number]) * 100) for number, one in enumerate(jobs)))
    assert sorted(one.kept for one in saved) == [False] * 7 + [True]
    winner = next(number for number, one in enumerate(saved) if one.kept)
    assert await jobs[0].read("k") == bytes([winner]) * 100


async def test_an_attempt_that_is_over_saves_nothing(pool: Pool[Record], job: Job) -> None:
    begun = await job.uploads.begin(job.id, 1, "cache", "k")
    assert begun.upload
    await uploading.put(job.uploads, job.id, 1, begun.upload.id, 0, b"whole")
    await pool.execute("update execution_jobs set attempt = 2")
    with pytest.raises(AttemptOver, match="attempt 1 of this job is over"):
        await uploading.complete(job.uploads, job.id, 1, begun.upload.id, b"whole", 1)
    again = await uploading.complete(job.uploads, job.id, 1, begun.upload.id, b"whole", 1)
    assert not again.kept
    assert "attempt 1 of this job is over" in again.reason
    assert await keys(pool) == []
    with pytest.raises(AttemptOver):
        await job.save("k")
    assert await job.save("k", attempt=2) == KEPT


async def test_what_is_larger_than_the_quota_is_refused(pool: Pool[Record], job: Job) -> None:
    with pytest.raises(TooLarge, match="larger than 1,000 bytes"):
        await job.save("k", b"x" * 1_001)
    assert await keys(pool) == []
    assert await job.save("k", b"x" * 1_000) == KEPT


async def test_the_longest_unused_make_room_and_no_more_than_needed(pool: Pool[Record], job: Job) -> None:
    for key in ("a", "b", "c", "d"):
        await job.save(key, b"x" * 250)
    await used(pool, "b", "d", "a", "c")
    assert await job.find("b") == "b"  # which counts as use
    assert await job.save("e", b"x" * 300) == KEPT
    assert await keys(pool) == [":b", ":c", ":e"]


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_nobody_finds_for_long_goes_object_and_all(
    pool: Pool[Record], job: Job, stored: Parts, objects: Objects, lead: lease.Lease
) -> None:
    for key in ("old", "young"):
        await job.save(key)
    await pool.execute("update caches set used_at = now() - interval '8 days' where key = 'old'")
    assert await job.find("old", "ol") is None
    sweeper = SweepCaches(pool, lead, stored, AT_ONCE)
    assert [await sweeper.run_once() for _ in range(3)] == [Pass(1, 0), Pass(0, 1), Pass(0, 0)]
    assert await pool.fetchval("select count(*) from caches") == 1
    assert await lying(objects) == 1
    assert await job.read("young") == b"x"


async def test_an_entry_past_its_time_gives_way_to_a_new_one_before_the_sweeper_comes(
    pool: Pool[Record], job: Job
) -> None:
    await job.save("k", b"old")
    await pool.execute("update caches set used_at = now() - interval '8 days'")
    assert await job.save("k", b"new") == KEPT
    assert await job.read("k") == b"new"


async def test_whoever_reads_an_entry_that_makes_room_reads_it_to_its_end(
    pool: Pool[Record], caches: Caches, job: Job, stored: Parts, lead: lease.Lease
) -> None:
    await job.save("a", b"x" * 900)
    found = await caches.find(job.id, 1, "a")
    assert found
    await job.save("b", b"x" * 900)
    assert await SweepCaches(pool, lead, stored, Settings()).run_once() == Pass(0, 0)
    assert b"".join([piece async for piece in caches.read(found)]) == b"x" * 900


async def test_a_store_that_is_away_is_asked_again(pool: Pool[Record], job: Job, lead: lease.Lease) -> None:
    class Away:
        def __init__(self) -> None:
            self.deleted: list[str] = []
            self.away = True

        async def remove(self, object_key: str, part_bytes: int | None) -> None:
            if self.away:
                raise Unavailable("not now")
            self.deleted.append(object_key)

    await job.save("a")
    await pool.execute("update caches set state = 'gone'")
    away = Away()
    sweeper = SweepCaches(pool, lead, away, AT_ONCE)
    assert await sweeper.run_once() == Pass(0, 0)
    away.away = False
    assert await sweeper.run_once() == Pass(0, 1)
    assert len(away.deleted) == 1


async def test_who_does_not_lead_sweeps_nothing(pool: Pool[Record], job: Job, stored: Parts, lead: lease.Lease) -> None:
    await job.save("old")
    await pool.execute("update caches set used_at = now() - interval '8 days'")
    await pool.execute("update leases set token = token + 1")
    with pytest.raises(LeaseLost):
        await SweepCaches(pool, lead, stored, AT_ONCE).run_once()
    assert await keys(pool) == [":old"]


async def test_an_entry_whose_object_is_lost_is_not_found_again(caches: Caches, job: Job, objects: Objects) -> None:
    await job.save("k")
    found = await caches.find(job.id, 1, "k")
    assert found
    await objects.delete(f"{found.object_key}/0")
    assert not await caches.parts.begins(found)
    await caches.lost(found)
    assert await job.find("k") is None
    assert await job.save("k", b"again") == KEPT
