"""What Git LFS keeps, from what earlier jobs have fetched: checked by name, apart by trust, out of reach of jobs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kici.agent import kept_objects
from kici.agent.errors import PreparationFailed
from kici.agent.lfs_mirrors import KIND
from kici.agent.mirrors import Mirrors
from kici.agent.workspace import Workspace
from kici.engine.lockfile import LockCheckout, SubmoduleLevels
from tests.support.kici_repository import KiciRepository
from tests.support.mirrored_jobs import (
    IS_ROOT,
    OWNERS,
    PASSWORD,
    Said,
    append,
    as_user,
    checked_out,
    contents,
    cut,
    flip,
    git,
    places,
    zero,
)
from tests.support.mirrors import mirrors
from tests.support.web import Web

WITH_LFS = LockCheckout(lfs=True)
each_owner = pytest.mark.parametrize("owner", OWNERS, ids=str)
pytestmark = pytest.mark.skipif(
    shutil.which("git-lfs") is None and "CI" not in os.environ, reason="git-lfs is not installed"
)


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    return KiciRepository(base / "repositories" / "repo", {"build": ["true"]})


def add(repository: KiciRepository, web: Web, **files: bytes) -> str:
    """A commit with so named files, in place of those that were there."""
    for old in repository.root.glob("*.bin"):
        old.unlink()
    pointers = {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"}
    for name, content in files.items():
        web.lfs[oid(content)] = content
        pointers[f"{name}.bin"] = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid(content)}\nsize {len(content)}\n"
        )
    repository.write(pointers)
    return repository.commit()


def oid(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@asynccontextmanager
async def job(base: Path, web: Web, kept: Mirrors, sha: str, **more: Any) -> AsyncIterator[Workspace]:
    async with checked_out(base, web, kept, sha, **({"options": WITH_LFS} | more)) as space:
        yield space


async def fill(base: Path, web: Web, kept: Mirrors, sha: str, **more: Any) -> Path:
    async with job(base, web, kept, sha, **more):
        pass
    return place(base)


def place(base: Path, trust: str = "trusted") -> Path:
    (found,) = [one for one in places(base) if one.name.endswith(KIND) and one.parent.name == trust]
    return found


def fetched(web: Web) -> list[str]:
    """Names of the objects that were fetched so far."""
    return [path.rpartition("/")[2] for _, path, _ in web.requests if path.startswith("/lfs/")]


# ── what a job gets ──────────────────────────────────────────────────────────────────────────────────────────────────


@each_owner
async def test_an_object_is_fetched_once_and_its_file_is_the_jobs(
    base: Path, web: Web, repository: KiciRepository, owner: Any
) -> None:
    content = os.urandom(100_000)
    sha = add(repository, web, big=content)
    kept = mirrors(base / "work")
    web.authorization = PASSWORD
    for _ in range(2):
        async with job(base, web, kept, sha, owner=owner, authorization=PASSWORD) as space:
            assert (space.src / "big.bin").read_bytes() == content
            assert (space.src / "big.bin").stat().st_ino not in {path.stat().st_ino for path in place(base).iterdir()}
            assert git(space, "status", "--porcelain") == ""
            git(space, "lfs", "fsck")
            if owner:
                done = subprocess.run([*as_user(owner), "bash", "-c", f"echo x >> {space.src}/big.bin"], check=False)
                assert done.returncode == 0
    assert fetched(web) == [oid(content)]
    assert (place(base) / oid(content)).read_bytes() == content


async def test_of_a_new_commit_only_new_objects_are_fetched_and_only_its_own_are_lent(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, add(repository, web, same=b"same", old=b"old"))
    sha = add(repository, web, same=b"same", new=b"new", **{"odd name": b"odd"})
    async with job(base, web, kept, sha) as space:
        assert (space.src / "same.bin").read_bytes() == b"same"
        assert (space.src / "new.bin").read_bytes() == b"new"
        assert (space.src / "odd name.bin").read_bytes() == b"odd"
        in_job = {path.name for path in (space.src / ".git/lfs/objects").rglob("*") if path.is_file()}
        assert in_job == {oid(b"same"), oid(b"new"), oid(b"odd")}
    assert sorted(fetched(web)) == sorted(map(oid, (b"same", b"old", b"new", b"odd")))


async def test_without_lfs_nothing_is_lent(base: Path, web: Web, repository: KiciRepository) -> None:
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    await fill(base, web, kept, sha)
    async with job(base, web, kept, sha, options=True) as space:
        assert (space.src / "big.bin").read_text().startswith("version https://git-lfs")
        assert not (space.src / ".git/lfs").exists()


async def test_objects_of_submodules_are_kept_for_their_own_repository(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    other = KiciRepository(base / "repositories" / "other", {"build": ["true"]})
    inner = add(other, web, inner=b"inner")
    repository.write({".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ../../other/.git\n'})
    repository.git("add", "--all")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{inner},lib")
    repository.git("commit", "--quiet", "--message=submodule")
    kept = mirrors(base / "work")
    options = LockCheckout(lfs=True, submodules=SubmoduleLevels.FIRST)
    for _ in range(2):
        async with job(base, web, kept, repository.sha, options=options) as space:
            assert (space.src / "lib/inner.bin").read_bytes() == b"inner"
    assert fetched(web) == [oid(b"inner")]
    assert (place(base) / "repository").read_text() == f"{web.url}/git/other/.git\n"


# ── who may have it ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_an_untrusted_job_has_fetched_is_kept_for_untrusted_ones_alone(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    trusted = repository.sha
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    async with job(base, web, kept, sha, workflow_sha=trusted, trusted=False):
        pass
    assert [one.parent.name for one in places(base) if one.name.endswith(KIND)] == ["unknown"]
    # As if the fork had managed to write there.
    poisoned = place(base, "unknown") / oid(b"content")
    poisoned.chmod(0o644)
    poisoned.write_bytes(b"evilevi")
    async with job(base, web, kept, sha) as space:
        assert (space.src / "big.bin").read_bytes() == b"content"
    assert (place(base) / oid(b"content")).read_bytes() == b"content"
    assert fetched(web) == [oid(b"content")] * 2


async def test_the_head_of_a_pull_request_fills_no_trusted_mirror_whatever_its_event_is(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    workflows = repository.sha
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    async with job(base, web, kept, sha, workflow_sha=workflows, trusted=True):
        pass
    assert [one.parent.name for one in places(base) if one.name.endswith(KIND)] == ["unknown"]


async def test_an_untrusted_job_is_lent_nothing_that_trusted_ones_have_fetched(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    """Its author may know the name of an object, and not what is in it."""
    sha = add(repository, web, big=b"secret")
    kept = mirrors(base / "work")
    await fill(base, web, kept, sha)
    del web.lfs[oid(b"secret")]
    with pytest.raises(PreparationFailed, match="does not exist"):
        async with job(base, web, kept, sha, trusted=False):
            pass


async def test_another_place_that_lfsconfig_names_is_neither_kept_nor_lent_to(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.write({".lfsconfig": f"[lfs]\n\turl = {web.url}/git/another/.git/info/lfs\n"})
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    for _ in range(2):
        async with job(base, web, kept, sha) as space:
            assert (space.src / "big.bin").read_bytes() == b"content"
    assert fetched(web) == [oid(b"content")] * 2
    assert [one for one in places(base) if one.name.endswith(KIND)] == []


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_refuses_the_commit_refuses_its_objects(
    base: Path, web: Web, repository: KiciRepository, status: int
) -> None:
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    found = await fill(base, web, kept, sha)
    web.git_status = status
    with pytest.raises(PreparationFailed, match="may not read it"):
        async with job(base, web, kept, sha, authorization=PASSWORD):
            pass
    assert (found / oid(b"content")).exists()


@each_owner
async def test_the_objects_are_the_agents_alone(base: Path, web: Web, repository: KiciRepository, owner: Any) -> None:
    found = await fill(base, web, mirrors(base / "work"), add(repository, web, big=b"content"), owner=owner)
    assert (found.stat().st_uid, found.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    about = (found / oid(b"content")).stat()
    assert (about.st_uid, about.st_mode & 0o777) == (os.geteuid(), 0o444)


@pytest.mark.skipif(not IS_ROOT, reason="a slot has no user of its own")
@pytest.mark.parametrize("again", [False, True])
async def test_a_job_of_its_own_user_cannot_write_the_object_that_it_was_lent(
    base: Path, web: Web, repository: KiciRepository, again: bool
) -> None:
    owner = OWNERS[-1]
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    if again:
        await fill(base, web, kept, sha, owner=owner)
    async with job(base, web, kept, sha, owner=owner) as space:
        before = contents(place(base))
        (lent,) = (path for path in (space.src / ".git/lfs/objects").rglob("*") if path.is_file())
        assert lent.stat().st_ino == (place(base) / lent.name).stat().st_ino
        for attack in (f"echo evil >> {lent}", f"chmod u+w {lent}", f": > {lent}", f"touch -d yesterday {lent}"):
            done = subprocess.run([*as_user(owner), "bash", "-c", attack], capture_output=True, check=False)
            assert done.returncode != 0, attack
        # It may do without, and put another one there: the directory is its own.
        subprocess.run([*as_user(owner), "bash", "-c", f"rm -f {lent} && echo evil > {lent}"], check=True)
        assert contents(place(base)) == before


async def test_a_job_of_the_agents_user_writes_into_a_copy(base: Path, web: Web, repository: KiciRepository) -> None:
    sha = add(repository, web, big=b"content")
    kept, said = mirrors(base / "work"), Said()
    for _ in range(3):
        async with job(base, web, kept, sha, said=said) as space:
            assert (space.src / "big.bin").read_bytes() == b"content"
            for path in (space.src / ".git/lfs/objects").rglob("*"):
                if path.is_file():
                    path.chmod(0o644)
                    path.write_bytes(b"evilevi")
    assert broken(said) == []
    assert fetched(web) == [oid(b"content")]


def broken(said: Said) -> list[str]:
    return [line for line in said if "broken" in line]


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _be_swapped(file: Path) -> None:
    """As long as it was, and another one's content."""
    file.write_bytes((file.parent / oid(b"second!")).read_bytes())


DAMAGE: dict[str, tuple[Callable[[Path], object], bool]] = {
    "cut": (cut, True),
    "empty": (lambda file: os.truncate(file, 0), True),
    "longer": (append, True),
    "zeros": (zero, True),
    "one bit": (flip, True),
    "another object": (_be_swapped, True),
    "missing": (lambda file: file.unlink(), False),
}


@each_owner
@pytest.mark.parametrize("damage", DAMAGE, ids=str)
async def test_an_object_that_is_damaged_is_fetched_again_and_no_other_one(
    base: Path, web: Web, repository: KiciRepository, owner: Any, damage: str
) -> None:
    sha = add(repository, web, first=b"content", second=b"second!")
    kept, said = mirrors(base / "work"), Said()
    found = await fill(base, web, kept, sha, owner=owner)
    kept_file = found / oid(b"content")
    kept_file.chmod(0o644)
    harm, is_told = DAMAGE[damage]
    harm(kept_file)
    before = len(fetched(web))
    async with job(base, web, kept, sha, owner=owner, said=said) as space:
        assert (space.src / "first.bin").read_bytes() == b"content"
        assert (space.src / "second.bin").read_bytes() == b"second!"
    assert fetched(web)[before:] == [oid(b"content")]
    assert len(broken(said)) == is_told
    async with job(base, web, kept, sha, owner=owner, said=said) as space:
        assert (space.src / "first.bin").read_bytes() == b"content"
    assert len(broken(said)) == is_told
    assert len(fetched(web)) == before + 1
    assert kept_file.read_bytes() == b"content"


@pytest.mark.parametrize("damage", ["it is a file", "an object is a directory", "an object is a link"])
async def test_a_mirror_that_is_no_directory_of_files_is_made_again(
    base: Path, web: Web, repository: KiciRepository, damage: str
) -> None:
    sha = add(repository, web, big=b"content")
    kept = mirrors(base / "work")
    found = await fill(base, web, kept, sha)
    broken_one = found if damage == "it is a file" else found / oid(b"content")
    remove_tree = shutil.rmtree if broken_one.is_dir() else os.unlink
    remove_tree(broken_one)
    if damage == "it is a file":
        found.write_text("")
    elif damage == "an object is a link":
        broken_one.symlink_to("/etc/passwd")
    else:
        broken_one.mkdir()
    for _ in range(2):
        async with job(base, web, kept, sha) as space:
            assert (space.src / "big.bin").read_bytes() == b"content"
    assert not (found / oid(b"content")).is_symlink()
    assert (found / oid(b"content")).read_bytes() == b"content"
    assert len(fetched(web)) == 2


async def test_what_a_killed_agent_has_left_half_taken_is_no_object(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept, said = mirrors(base / "work"), Said()
    found = await fill(base, web, kept, add(repository, web, big=b"content"))
    (found / ".new").write_bytes(b"half")
    async with job(base, web, kept, add(repository, web, big=b"more"), said=said) as space:
        assert (space.src / "big.bin").read_bytes() == b"more"
    assert {path.name for path in found.iterdir()} == {oid(b"content"), oid(b"more"), "repository"}
    assert broken(said) == []


async def test_an_object_that_the_server_sends_wrong_is_not_kept(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    sha = add(repository, web, big=b"content")
    web.lfs[oid(b"content")] = b"evilevi"
    kept = mirrors(base / "work")
    with pytest.raises(PreparationFailed, match="Git LFS"):
        async with job(base, web, kept, sha):
            pass
    assert [one for one in places(base) if one.name.endswith(KIND)] == []


# ── several at once, and room ────────────────────────────────────────────────────────────────────────────────────────


@each_owner
@pytest.mark.parametrize("first", [True, False])
async def test_jobs_beside_each_other(
    base: Path, web: Web, repository: KiciRepository, owner: Any, first: bool
) -> None:
    kept, said = mirrors(base / "work"), Said()
    sha = add(repository, web, one=b"one", two=b"two")
    if not first:
        found = await fill(base, web, kept, sha, owner=owner)
        (found / oid(b"one")).chmod(0o644)
        flip(found / oid(b"one"))

    async def one(slot: int) -> None:
        async with job(base, web, kept, sha, owner=owner, slot=slot, said=said) as space:
            assert (space.src / "one.bin").read_bytes() == b"one"
            assert (space.src / "two.bin").read_bytes() == b"two"

    await asyncio.gather(*map(one, range(4)))
    assert {path.read_bytes() for path in place(base).iterdir() if path.name != "repository"} == {b"one", b"two"}


async def test_what_no_job_has_used_for_long_goes_when_there_is_much_of_it(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_objects, "SPARE_BYTES", 0)
    kept = mirrors(base / "work")
    for number in range(5):
        content = str(number).encode() * 1_000
        found = await fill(base, web, kept, add(repository, web, big=content))
        os.utime(found / oid(content), (number + 1, number + 1))
    assert {path.name for path in found.iterdir()} == {oid(b"3" * 1_000), oid(b"4" * 1_000), "repository"}


async def test_objects_that_are_larger_than_the_limit_are_not_kept(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    sha = add(repository, web, big=os.urandom(300_000))
    kept = mirrors(base / "work", KICI_MIRRORS_BYTES="200000")
    for _ in range(2):
        async with job(base, web, kept, sha) as space:
            assert (space.src / "big.bin").stat().st_size == 300_000
    assert [one for one in places(base) if one.name.endswith(KIND)] == []


async def test_they_are_evicted_like_other_mirrors_but_not_while_a_job_uses_them(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work")
    sha = add(repository, web, big=os.urandom(100_000))
    found = await fill(base, web, kept, sha)
    with kept.lfs._places.directories.using(found):
        kept.evict(10**12)
        assert found.exists()
    kept.evict(10**12)
    assert not found.exists()
    async with job(base, web, kept, sha):
        pass


@pytest.mark.skipif(not IS_ROOT, reason="only root may mount a small file system")
@pytest.mark.parametrize("least", ["0", "209715200"])
async def test_a_disk_without_room_for_objects_costs_no_job(
    base: Path, web: Web, repository: KiciRepository, least: str
) -> None:
    """They are copied here: there is room for the job's two, and none for the mirror's."""
    content = {name: os.urandom(2 * 1024**2) for name in ("one", "two")}
    sha = add(repository, web, **content)
    work = base / "work"
    work.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", work], check=True)
    try:
        (work / "filler").write_bytes(bytes(5 * 1024**2))
        async with job(base, web, mirrors(work, KICI_MIN_FREE_BYTES=least), sha) as space:
            assert all((space.src / f"{name}.bin").read_bytes() == data for name, data in content.items())
            assert os.statvfs(work).f_bavail * os.statvfs(work).f_frsize > 2 * 1024**2
        assert [one for one in places(base) if one.name.endswith(KIND)] == []
    finally:
        subprocess.run(["umount", "--lazy", work], check=True)
