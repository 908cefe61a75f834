"""What an agent keeps of repositories: fetched once, apart by trust, checked each time, out of reach of jobs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kici.agent import checkout, kept_packs, workspace
from kici.agent.errors import PreparationFailed
from kici.agent.git import Remote, basic
from kici.agent.kept_packs import MANIFEST
from kici.agent.mirrors import NAME, Mirrors
from kici.agent.workspace import Owner
from kici.engine.lockfile import LockCheckout
from kici.wire.agent import Checkout
from tests.support.kici_repository import KiciRepository
from tests.support.mirrored_jobs import (
    BIG,
    DAMAGE,
    IS_ROOT,
    OWNERS,
    PASSWORD,
    Said,
    as_user,
    checked_out,
    contents,
    git,
    objects,
    places,
)
from tests.support.mirrors import mirrors
from tests.support.web import Web

each_owner = pytest.mark.parametrize("owner", OWNERS, ids=str)


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    """With a file that a second fetch must not bring again."""
    made = KiciRepository(base / "repositories" / "repo", {"build": ["true"]})
    (made.root / "big").write_bytes(os.urandom(BIG))
    made.commit()
    return made


async def fill(base: Path, web: Web, kept: Mirrors, sha: str, owner: Owner | None = None, **more: bool) -> Path:
    """The mirror that a first job leaves."""
    async with checked_out(base, web, kept, sha, owner=owner, trusted=more.get("trusted", True)):
        pass
    (place,) = places(base)
    return place


# ── what a job gets ──────────────────────────────────────────────────────────────────────────────────────────────────


@each_owner
async def test_the_second_job_of_a_commit_asks_the_server_and_fetches_nothing(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha, owner)
    asked, sent = len(web.requests), web.git_bytes
    async with checked_out(base, web, kept, repository.sha, owner=owner) as space:
        assert (space.src / "big").stat().st_size == BIG
        assert git(space, "rev-parse", "HEAD") == repository.sha
        assert git(space, "status", "--porcelain") == ""
    assert len(web.requests) > asked
    assert web.git_bytes - sent < 5_000


@each_owner
async def test_of_a_new_commit_only_what_is_new_is_fetched(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha, owner)
    for number in range(3):
        repository.write({"small": f"{number}\n"})
        sha = repository.commit()
        sent = web.git_bytes
        async with checked_out(base, web, kept, sha, owner=owner) as space:
            assert (space.src / "small").read_text() == f"{number}\n"
            assert (space.src / "big").stat().st_size == BIG
        assert web.git_bytes - sent < 5_000


@each_owner
@pytest.mark.parametrize("again", ["same", "new"])
async def test_a_repository_that_a_mirror_has_lent_to_is_a_plain_one(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None, again: str
) -> None:
    """No path of the mirror, no credential, no more history or tags than without; fsck and gc work, and do no harm."""
    repository.git("tag", "old")
    repository.git("tag", "--annotate", "--message=older", "older")
    kept = mirrors(base / "work")
    web.authorization = PASSWORD
    async with checked_out(base, web, kept, repository.sha, owner=owner, authorization=PASSWORD):
        pass
    (place,) = places(base)
    if again == "new":
        repository.write({"small": "1\n"})
        repository.commit()
        repository.git("tag", "new")
        repository.git("tag", "--annotate", "--message=newer", "newer")
    sha, before = repository.sha, contents(place)
    async with checked_out(base, web, kept, sha, owner=owner, authorization=PASSWORD) as space:
        assert git(space, "tag").split() == (["new", "newer"] if again == "new" else ["old", "older"])
        assert git(space, "rev-list", "--count", "HEAD") == "1"
        assert git(space, "rev-parse", "--is-shallow-repository") == "true"
        assert git(space, "describe") == ("newer" if again == "new" else "older")
        refs = {line.split()[1] for line in git(space, "show-ref").splitlines()}
        assert {ref for ref in refs if not ref.startswith("refs/tags/")} == {"refs/kici/0"}
        git(space, "fsck", "--full", "--strict", "--connectivity-only")
        git(space, "fsck", "--full")
        git(space, "-c", "gc.pruneExpire=now", "gc", "--quiet")
        git(space, "fsck", "--full")
        assert git(space, "rev-parse", "HEAD") == sha
        assert not (space.src / ".git/objects/info/alternates").exists()
        texts = b"".join(
            path.read_bytes() for path in (space.src / ".git").rglob("*") if path.is_file() and "pack" not in path.parts
        )
        assert str(place).encode() not in texts
        assert NAME.encode() + b"/" not in texts
        assert b"hunter2" not in texts
        assert PASSWORD.split()[1].encode() not in texts
    assert {name: data for name, data in contents(place).items() if name in before and name != MANIFEST} == {
        name: data for name, data in before.items() if name != MANIFEST
    }


async def test_history_for_a_merge_base_after_a_mirror_has_lent(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    forked = repository.sha
    repository.git("checkout", "--quiet", "-b", "feature")
    repository.write({"a": "1"})
    head = repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.write({"b": "1"})
    later = repository.commit()
    kept = mirrors(base / "work")
    for sha in (forked, head, later):
        async with checked_out(base, web, kept, sha):
            pass
    async with checked_out(base, web, kept, head, options=LockCheckout(depth=0)) as space:
        assert git(space, "merge-base", "origin/main", "HEAD") == forked
        assert git(space, "rev-parse", "--is-shallow-repository") == "false"
        git(space, "fsck", "--full")
    async with checked_out(base, web, kept, later, options=LockCheckout(depth=2)) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "2"


async def test_what_an_older_commit_had_and_the_mirror_has_not_is_fetched(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    """The mirror's commits are cut from their parents: that it has a commit says nothing of what came before."""
    first = (repository.root / "big").read_bytes()
    (repository.root / "big").write_bytes(os.urandom(BIG))
    second = repository.commit()
    (repository.root / "big").write_bytes(first)
    third = repository.commit()
    kept = mirrors(base / "work")
    await fill(base, web, kept, second)
    async with checked_out(base, web, kept, third) as space:
        assert (space.src / "big").read_bytes() == first
        git(space, "fsck", "--full")


async def test_a_tag_that_was_moved_to_the_commit_since_comes_along(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.git("tag", "v1")
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    sha = repository.commit()
    await fill(base, web, kept, sha)
    repository.git("tag", "--force", "v1")
    repository.git("tag", "--annotate", "--message=note", "v2")
    async with checked_out(base, web, kept, sha) as space:
        assert git(space, "tag").split() == ["v1", "v2"]
        assert git(space, "rev-parse", "v1", "v2^{commit}").split() == [sha, sha]


async def test_a_commit_whose_branch_is_gone_is_there_still(base: Path, web: Web, repository: KiciRepository) -> None:
    repository.write({"x": "lost"})
    lost = repository.commit()
    kept = mirrors(base / "work")
    await fill(base, web, kept, lost)
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    async with checked_out(base, web, kept, lost) as space:
        assert (space.src / "x").read_text() == "lost"


# ── who may have it ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_refuses_the_credential_refuses_what_the_mirror_has(
    base: Path, web: Web, repository: KiciRepository, status: int
) -> None:
    kept, said = mirrors(base / "work"), Said()
    place = await fill(base, web, kept, repository.sha)
    web.git_status = status
    with pytest.raises(PreparationFailed, match="may not read it"):
        async with checked_out(base, web, kept, repository.sha, authorization=PASSWORD, said=said):
            pass
    assert place.exists()
    assert said.repairs == []


async def test_a_credential_that_was_revoked_opens_nothing(base: Path, web: Web, repository: KiciRepository) -> None:
    kept = mirrors(base / "work")
    web.authorization = PASSWORD
    async with checked_out(base, web, kept, repository.sha, authorization=PASSWORD):
        pass
    web.authorization = basic("", "another")
    with pytest.raises(PreparationFailed, match="may not read it"):
        async with checked_out(base, web, kept, repository.sha, authorization=PASSWORD):
            pass


async def test_what_only_an_untrusted_job_has_fetched_is_not_in_the_trusted_mirror(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    trusted = repository.sha
    repository.git("checkout", "--quiet", "-b", "fork")
    repository.write({"evil": "from a fork\n"})
    hostile = repository.commit()
    evil = repository.git("rev-parse", "HEAD:evil")
    repository.git("update-ref", "refs/pull/7/head", hostile)
    repository.git("checkout", "--quiet", "main")
    repository.write({"good": "1\n"})
    later = repository.commit()
    kept = mirrors(base / "work")
    async with checked_out(base, web, kept, hostile, workflow_sha=trusted, trusted=False):
        pass
    async with checked_out(base, web, kept, trusted):
        pass
    async with checked_out(base, web, kept, later) as space:
        found = subprocess.run(["git", "-C", str(space.src), "cat-file", "-e", evil], capture_output=True, check=False)
        assert found.returncode != 0
    ours, theirs = places(base)
    assert (ours.parent.name, theirs.parent.name) == ("trusted", "unknown")
    assert {trusted, later} <= objects(ours)
    assert not {hostile, evil} & objects(ours)
    assert {hostile, evil, trusted} <= objects(theirs)
    assert later not in objects(theirs)


async def test_an_untrusted_job_is_lent_nothing_of_the_trusted_mirror(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.write({"private": "1\n"})
    first = repository.commit()
    second = repository.commit()
    kept = mirrors(base / "work")
    await fill(base, web, kept, first)
    sent = web.git_bytes
    async with checked_out(base, web, kept, second, trusted=False) as space:
        listing = subprocess.run(
            ["git", "-C", str(space.src), "cat-file", "-e", first], capture_output=True, check=False
        )
        assert listing.returncode != 0
    assert web.git_bytes - sent > BIG


@each_owner
async def test_a_mirror_is_the_agents_alone_and_says_whose_it_is(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    kept = mirrors(base / "work")
    place = await fill(base, web, kept, repository.sha, owner)
    assert (place / "repository").read_text() == f"{web.url}/git/repo/.git\n"
    for path in (place, place.parent, place.parent.parent):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    for path in place.iterdir():
        assert path.stat().st_uid == os.geteuid()
        assert path.stat().st_mode & 0o022 == 0


@pytest.mark.skipif(not IS_ROOT, reason="a slot has no user of its own")
@pytest.mark.parametrize("again", [False, True])
async def test_a_job_of_its_own_user_can_neither_write_what_it_was_lent_nor_see_the_mirror(
    base: Path, web: Web, repository: KiciRepository, again: bool
) -> None:
    owner = Owner(60_999, 60_999)
    kept = mirrors(base / "work")
    if again:
        await fill(base, web, kept, repository.sha, owner)
    async with checked_out(base, web, kept, repository.sha, owner=owner) as space:
        (place,) = places(base)
        before = contents(place)
        (pack,) = (space.src / ".git/objects/pack").glob("*.pack")
        assert pack.stat().st_ino in {path.stat().st_ino for path in place.iterdir()}
        for attack in (
            f"echo evil >> {pack}",
            f"chmod u+w {pack}",
            f": > {pack}",
            f"touch -d yesterday {pack}",
            f"ls {place}",
            f"ls {place.parent.parent}",
            f"cat {place / MANIFEST}",
        ):
            done = subprocess.run([*as_user(owner), "bash", "-c", attack], capture_output=True, check=False)
            assert done.returncode != 0, attack
        # It may do without: the directory is its own.
        subprocess.run([*as_user(owner), "rm", "-f", pack], check=True)
        assert contents(place) == before


async def test_a_job_of_the_agents_user_writes_into_a_copy(base: Path, web: Web, repository: KiciRepository) -> None:
    kept, said = mirrors(base / "work"), Said()
    for _ in range(2):
        async with checked_out(base, web, kept, repository.sha) as space:
            for file in (space.src / ".git/objects/pack").iterdir():
                file.chmod(0o644)
                file.write_bytes(b"evil")
    async with checked_out(base, web, kept, repository.sha, said=said) as space:
        git(space, "fsck", "--full")
    assert said.repairs == []


@pytest.mark.parametrize("variables", [{"KICI_MIRRORS": "false"}, {"sandboxed": False}], ids=str)
async def test_nothing_is_kept_where_it_is_switched_off_or_jobs_could_write_there(
    base: Path, web: Web, repository: KiciRepository, variables: dict[str, str]
) -> None:
    kept = mirrors(base / "work", **variables)  # type: ignore[arg-type]
    async with checked_out(base, web, kept, repository.sha):
        pass
    assert not (base / "work" / NAME).exists()


async def test_addresses_that_are_the_same_share_a_mirror_and_others_do_not(base: Path) -> None:
    kept = mirrors(base / "work")
    place = kept._place("https://Forge.example:443/me/repo", trusted=True)
    assert kept._place("https://forge.example/me/repo/", trusted=True) == place
    for url in (
        "http://forge.example/me/repo",
        "https://forge.example/me/Repo",
        "https://forge.example:444/me/repo",
        "https://forge.example/me/repo?x",
    ):
        assert kept._place(url, trusted=True) != place
    assert kept._place("https://forge.example/me/repo", trusted=False) != place


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
async def test_a_mirror_that_is_damaged_costs_a_fetch_and_no_job(
    base: Path, web: Web, repository: KiciRepository, damage: str
) -> None:
    """Neither a job of a commit that it has, nor one of a new commit; afterwards it is whole again."""
    kept, said, owner = mirrors(base / "work"), Said(), OWNERS[-1]
    # git goes on without a commit that is said to be there and is not, and fetches everything.
    repairs = 0 if damage == "a tip is missing" else 1
    await fill(base, web, kept, repository.sha, owner)
    repository.write({"small": "1\n"})
    place = await fill(base, web, kept, repository.commit(), owner)
    for again in ("same", "new"):
        DAMAGE[damage](place)
        if again == "new":
            repository.write({"small": "2\n"})
            repository.commit()
        said.clear()
        async with checked_out(base, web, kept, repository.sha, owner=owner, said=said) as space:
            assert (space.src / "big").stat().st_size == BIG
            assert git(space, "rev-parse", "HEAD") == repository.sha
            git(space, "fsck", "--full")
        assert len(said.repairs) == repairs, said
        said.clear()
        sent = web.git_bytes
        async with checked_out(base, web, kept, repository.sha, owner=owner, said=said):
            pass
        assert said.repairs == []
        assert web.git_bytes - sent < 5_000


@pytest.mark.parametrize("name", ["manifest of another mirror", "packs of another mirror"])
async def test_what_belongs_to_another_mirror_is_noticed(
    base: Path, web: Web, repository: KiciRepository, name: str
) -> None:
    """As after a restore from a backup that went wrong."""
    kept, said = mirrors(base / "work"), Said()
    place = await fill(base, web, kept, repository.sha)
    other = await fill_other(base, web, kept)
    if name.startswith("manifest"):
        shutil.copy(other / MANIFEST, place / MANIFEST)
    else:
        for file in place.glob("pack-*"):
            file.unlink()
        for file in other.glob("pack-*"):
            shutil.copy(file, place)
    async with checked_out(base, web, kept, repository.sha, said=said) as space:
        assert (space.src / "big").stat().st_size == BIG
    assert len(said.repairs) == 1


async def fill_other(base: Path, web: Web, kept: Mirrors) -> Path:
    other = KiciRepository(base / "repositories" / "other", {"build": ["true"]})
    known = set(places(base))
    wanted = Checkout(f"{web.url}/git/other/.git", other.sha, other.sha, trusted=True)
    with workspace.opened(base / "work", 9, None) as space:
        await checkout.fetch(space, Remote(wanted.url, ""), wanted, kept, print)
    (place,) = set(places(base)) - known
    return place


async def test_an_agent_that_was_killed_while_it_kept_something_leaves_nothing_that_harms(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept, said = mirrors(base / "work"), Said()
    place = await fill(base, web, kept, repository.sha)
    (place / f".{MANIFEST}").write_text("half")
    (place / "pack-0123.pack").write_bytes(b"PACK half")
    (place / "pack-0123.idx").write_bytes(b"half")
    other = place.with_name("0" * 32)
    other.mkdir()
    (other / "pack-0123.pack").write_bytes(b"PACK half")
    for _ in range(2):
        repository.write({"small": os.urandom(4).hex()})
        async with checked_out(base, web, kept, repository.commit(), said=said):
            pass
    assert said.repairs == []
    assert not list(place.glob("*0123*"))
    assert kept.evict(1) > 0, "what has no list is thrown away too"


async def test_a_fetch_that_is_cancelled_changes_no_mirror(base: Path, web: Web, repository: KiciRepository) -> None:
    kept = mirrors(base / "work")
    place = await fill(base, web, kept, repository.sha)
    before = contents(place)
    repository.write({"small": "1"})
    sha = repository.commit()
    web.git_allowed.clear()
    web.git_asked.clear()

    async def job() -> None:
        async with checked_out(base, web, kept, sha):
            pass

    running = asyncio.ensure_future(job())
    await asyncio.to_thread(web.git_asked.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert contents(place) == before
    web.git_allowed.set()
    await job()
    assert contents(place) != before


# ── several at once, and room ────────────────────────────────────────────────────────────────────────────────────────


@each_owner
@pytest.mark.parametrize("first", [True, False])
async def test_jobs_beside_each_other_each_get_their_commit(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None, first: bool
) -> None:
    """Whether or not there is a mirror yet: none waits for another one's fetch, and what they leave is whole."""
    kept, said = mirrors(base / "work"), Said()
    if not first:
        await fill(base, web, kept, repository.sha, owner)
    shas = []
    for number in range(3):
        repository.write({"small": f"{number}\n"})
        shas.append(repository.commit())

    async def job(slot: int) -> None:
        sha = shas[slot % 3]
        async with checked_out(base, web, kept, sha, owner=owner, slot=slot, said=said) as space:
            assert (space.src / "small").read_text() == f"{slot % 3}\n"
            assert (space.src / "big").stat().st_size == BIG

    await asyncio.gather(*map(job, range(5)))
    (place,) = places(base)
    manifest = kept_packs.read(place)
    assert manifest
    kept_packs.check(place, manifest)
    assert set(shas) <= set(manifest.tips)
    sent = web.git_bytes
    await asyncio.gather(*map(job, range(5)))
    assert web.git_bytes - sent < 25_000
    assert said.repairs == []


async def test_a_mirror_with_many_packs_is_made_anew(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.kept_packs.MAX_PACKS", 3)
    kept, said = mirrors(base / "work"), Said()
    counts = []
    for number in range(5):
        repository.write({"small": f"{number}\n"})
        sha = repository.commit()
        for _ in range(2):
            async with checked_out(base, web, kept, sha, said=said):
                pass
        counts.append(len(list(places(base)[0].glob("*.pack"))))
    assert counts == [1, 2, 3, 1, 2]
    assert said.repairs == []


async def test_what_was_used_least_recently_goes_when_there_is_too_much(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work", KICI_MIRRORS_BYTES=str(BIG + 100_000))
    place = await fill(base, web, kept, repository.sha)
    os.utime(place, (1, 1))
    other = await fill_other(base, web, kept)
    assert places(base) == sorted([place, other])
    (repository.root / "../other/big").write_bytes(os.urandom(BIG))
    sha = subprocess.run(
        "git add --all && git -c user.name=t -c user.email=t@t commit -q -m x && git rev-parse HEAD",
        shell=True, cwd=repository.root.parent / "other", capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    os.utime(place, (1, 1))
    wanted = Checkout(f"{web.url}/git/other/.git", sha, sha, trusted=True)
    with workspace.opened(base / "work", 9, None) as space:
        await checkout.fetch(space, Remote(wanted.url, ""), wanted, kept, print)
    assert places(base) == [other]


async def test_a_repository_that_is_larger_than_the_limit_has_no_mirror(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work", KICI_MIRRORS_BYTES=str(BIG // 2))
    for _ in range(2):
        async with checked_out(base, web, kept, repository.sha) as space:
            assert (space.src / "big").stat().st_size == BIG
    assert places(base) == []


async def test_a_mirror_that_a_job_uses_now_is_not_evicted(base: Path, web: Web, repository: KiciRepository) -> None:
    kept = mirrors(base / "work")
    place = await fill(base, web, kept, repository.sha)
    repository.write({"small": "1"})
    sha = repository.commit()
    web.git_allowed.clear()
    web.git_asked.clear()

    async def job() -> None:
        async with checked_out(base, web, kept, sha) as space:
            assert (space.src / "big").stat().st_size == BIG

    running = asyncio.ensure_future(job())
    await asyncio.to_thread(web.git_asked.wait, 20)
    assert await asyncio.to_thread(kept.evict, 10**12) == 0
    web.git_allowed.set()
    await running
    assert await asyncio.to_thread(kept.evict, 10**12) > BIG
    assert not place.exists()
    await job()


@pytest.mark.skipif(not IS_ROOT, reason="only root may mount a small file system")
@pytest.mark.parametrize("least", ["0", "209715200"])
async def test_a_disk_without_room_for_a_mirror_costs_no_job(
    base: Path, web: Web, repository: KiciRepository, least: str
) -> None:
    """The packs are copied here: there is room for the job's, and none for the mirror's, or none to spare."""
    (repository.root / "big").write_bytes(os.urandom(5 * 1024**2))
    sha = repository.commit()
    place = base / "work"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", place], check=True)
    try:
        kept = mirrors(place, KICI_MIN_FREE_BYTES=least)
        (place / "filler").write_bytes(bytes(8 * 1024**2))
        wanted = Checkout(f"{web.url}/git/repo/.git", sha, sha, trusted=True)
        with workspace.opened(place, 0, None) as space:
            await checkout.fetch(space, Remote(wanted.url, ""), wanted, kept, print)
            assert os.statvfs(place).f_bavail * os.statvfs(place).f_frsize > 2 * 1024**2
        assert places(base) == []
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
