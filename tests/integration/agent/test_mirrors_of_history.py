"""The whole history from what earlier jobs have fetched: only what is new comes, and what there is is a plain clone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kici.agent import kept_packs
from kici.agent.errors import PreparationFailed
from kici.agent.kept_packs import MANIFEST, Manifest
from kici.agent.mirrors import HISTORY, NAME, Mirrors
from kici.agent.workspace import Workspace
from kici.engine.lockfile import LockCheckout
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
    the,
)
from tests.support.mirrors import mirrors, no_mirrors
from tests.support.web import Web

WHOLE = LockCheckout(depth=0)
WITH_TAGS = LockCheckout(depth=0, tags=True)
LITTLE = 8_000
each_owner = pytest.mark.parametrize("owner", OWNERS, ids=str)


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    """With a file in its history that no later fetch must bring again, and a branch beside main."""
    made = KiciRepository(base / "repositories" / "repo", {"build": ["true"]})
    (made.root / "big").write_bytes(os.urandom(BIG))
    made.commit()
    (made.root / "big").unlink()
    made.write({"small": "0"})
    made.commit()
    made.git("checkout", "--quiet", "-b", "feature")
    made.write({"feature": "1"})
    made.commit()
    made.git("checkout", "--quiet", "main")
    return made


@asynccontextmanager
async def whole(base: Path, web: Web, kept: Mirrors, sha: str, **more: Any) -> AsyncIterator[Workspace]:
    async with checked_out(base, web, kept, sha, **({"options": WHOLE} | more)) as space:
        yield space


async def fill(base: Path, web: Web, kept: Mirrors, sha: str, **more: Any) -> Path:
    async with whole(base, web, kept, sha, **more):
        pass
    return place(base)


def place(base: Path, trust: str = "trusted") -> Path:
    (found,) = [one for one in places(base) if one.name.endswith(HISTORY) and one.parent.name == trust]
    return found


def manifest(base: Path) -> Manifest:
    found = kept_packs.read(place(base))
    assert found
    return found


def refs(space: Workspace) -> dict[str, str]:
    return {name: sha for sha, name in (line.split() for line in git(space, "show-ref").splitlines())}


async def refs_without(base: Path, web: Web, sha: str, **more: Any) -> dict[str, str]:
    """What a job finds that no mirror has lent to."""
    async with whole(base, web, no_mirrors(base / "work"), sha, **more) as space:
        return refs(space)


# ── what a job gets ──────────────────────────────────────────────────────────────────────────────────────────────────


@each_owner
async def test_the_second_job_asks_the_server_and_fetches_nothing_of_the_history(
    base: Path, web: Web, repository: KiciRepository, owner: Any
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha, owner=owner)
    asked, sent = len(web.requests), web.git_bytes
    async with whole(base, web, kept, repository.sha, owner=owner) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "3"
        assert git(space, "cat-file", "-s", "HEAD~1:big") == str(BIG)
    assert len(web.requests) > asked
    assert web.git_bytes - sent < LITTLE


@each_owner
async def test_of_new_commits_and_branches_only_what_is_new_is_fetched(
    base: Path, web: Web, repository: KiciRepository, owner: Any
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha, owner=owner)
    for number in range(3):
        repository.git("branch", f"new-{number}")
        repository.write({"small": f"new {number}"})
        sha = repository.commit()
        sent = web.git_bytes
        async with whole(base, web, kept, sha, owner=owner) as space:
            assert git(space, "rev-list", "--count", "HEAD") == str(4 + number)
            assert git(space, "cat-file", "-s", f"HEAD~{number + 2}:big") == str(BIG)
            assert refs(space)[f"refs/remotes/origin/new-{number}"] == git(space, "rev-parse", "HEAD~1")
        assert web.git_bytes - sent < LITTLE


@each_owner
@pytest.mark.parametrize("options", [WHOLE, WITH_TAGS], ids=["tags of the history", "all tags"])
async def test_the_repository_is_as_one_that_no_mirror_has_lent_to(
    base: Path, web: Web, repository: KiciRepository, owner: Any, options: LockCheckout
) -> None:
    """The same refs after branches were deleted and force-pushed and tags moved and removed; fsck and gc do no harm."""
    for name in ("stays", "moves", "goes"):
        repository.git("tag", name)
        repository.git("tag", "--annotate", "--message=x", f"{name}-annotated")
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.write({"topic": "1"})
    repository.commit()
    repository.git("tag", "of-topic")
    repository.git("tag", "--annotate", "--message=x", "of-topic-annotated")
    repository.git("tag", "--annotate", "--message=nested", "of-topic-nested", "of-topic-annotated")
    repository.git("tag", "of-a-file", "HEAD:topic")
    repository.git("tag", "of-a-tree", "HEAD~1^{tree}")
    repository.git("checkout", "--quiet", "main")
    kept = mirrors(base / "work")
    web.authorization = PASSWORD
    await fill(base, web, kept, repository.sha, owner=owner, authorization=PASSWORD, options=WITH_TAGS)
    repository.git("branch", "--quiet", "--delete", "--force", "topic")
    repository.git("checkout", "--quiet", "feature")
    repository.git("commit", "--quiet", "--amend", "--message=force-pushed")
    repository.git("checkout", "--quiet", "main")
    repository.write({"small": "1"})
    sha = repository.commit()
    repository.git("tag", "--force", "moves")
    repository.git("tag", "--force", "--annotate", "--message=y", "moves-annotated")
    repository.git("tag", "--delete", "goes", "goes-annotated")
    before = contents(place(base))
    same = {"owner": owner, "authorization": PASSWORD, "options": options}
    expected = await refs_without(base, web, sha, **same)
    async with whole(base, web, kept, sha, **same) as space:
        assert refs(space) == expected
        assert "refs/remotes/origin/topic" not in expected
        assert ("refs/tags/of-topic" in expected) == options.tags
        assert git(space, "rev-parse", "--is-shallow-repository") == "false"
        assert not (space.src / ".git/shallow").exists()
        assert git(space, "status", "--porcelain") == ""
        git(space, "fsck", "--full", "--strict")
        git(space, "-c", "gc.pruneExpire=now", "gc", "--quiet")
        git(space, "fsck", "--full")
        assert refs(space) == expected
        assert not (space.src / ".git/objects/info/alternates").exists()
        texts = b"".join(
            path.read_bytes() for path in (space.src / ".git").rglob("*") if path.is_file() and "pack" not in path.parts
        )
        for secret in (NAME.encode() + b"/", b"hunter2", PASSWORD.split()[1].encode()):
            assert secret not in texts
    after = contents(place(base))
    assert all(after[name] == data for name, data in before.items() if name != MANIFEST)


async def test_tags_of_files_and_trees_are_there_if_a_branch_leads_to_them(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.git("tag", "file", "HEAD:small")
    repository.git("tag", "tree", "HEAD^{tree}")
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    expected = await refs_without(base, web, repository.sha)
    assert {"refs/tags/file", "refs/tags/tree"} <= set(expected)
    async with whole(base, web, kept, repository.sha) as space:
        assert refs(space) == expected


async def test_a_pull_request_beside_the_commit_of_its_workflows(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    """Neither needs to be on a branch."""
    base_sha = repository.sha
    repository.git("checkout", "--quiet", "--detach")
    repository.write({"pull": "1"})
    head = repository.commit()
    repository.git("update-ref", "refs/pull/7/head", head)
    repository.git("checkout", "--quiet", "main")
    repository.git("commit", "--quiet", "--amend", "--message=force-pushed")
    kept = mirrors(base / "work")
    same = {"workflow_sha": base_sha, "trusted": False}
    expected = await refs_without(base, web, head, **same)
    for _ in range(2):
        sent = web.git_bytes
        async with whole(base, web, kept, head, **same) as space:
            assert refs(space) == expected
            assert expected["refs/kici/1"] == base_sha
            assert git(space, "merge-base", "HEAD", "origin/main") == git(space, "rev-parse", "HEAD~2")
            git(space, "fsck", "--full")
    assert web.git_bytes - sent < LITTLE


async def test_a_commit_that_the_server_has_lost_since_is_there_with_what_came_before_it(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    lost = repository.sha
    kept = mirrors(base / "work")
    await fill(base, web, kept, lost)
    lose(repository)
    async with whole(base, web, kept, lost) as space:
        assert git(space, "rev-parse", "HEAD") == lost
        assert git(space, "rev-list", "--count", "HEAD") == "3"


async def test_a_commit_that_only_the_mirror_of_commits_has_still_is_checked_out(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    """What is lent of the history does not have it, nor does the server: the job starts over, and finds it."""
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    repository.write({"small": "lost"})
    lost = repository.commit()
    async with checked_out(base, web, kept, lost):
        pass
    lose(repository)
    async with whole(base, web, kept, lost) as space:
        assert (space.src / "small").read_text() == "lost"
        assert "refs/remotes/origin/main" in refs(space)


def lose(repository: KiciRepository) -> None:
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")


async def test_a_server_that_gives_no_commit_by_its_name_is_asked_for_refs_and_nothing_of_it_is_kept(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    wanted = repository.sha
    kept = mirrors(base / "work")
    await fill(base, web, kept, wanted)
    repository.write({"small": "1"})
    hidden = repository.commit()
    repository.write({"small": "2"})
    repository.commit()
    web.git_protocol_0 = True
    before = contents(place(base))
    async with whole(base, web, kept, hidden) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "4"
    assert contents(place(base)) == before


async def test_a_server_that_has_no_history_itself_fills_no_mirror(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    source = base / "repositories" / "full"
    repository.root.rename(source)
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{source}", repository.root], check=True)
    kept, said = mirrors(base / "work"), Said()
    for _ in range(2):
        async with whole(base, web, kept, repository.sha, said=said) as space:
            assert git(space, "rev-list", "--count", "HEAD") == "1"
    assert [one.name for one in places(base) if one.name.endswith(HISTORY)] == []
    assert said.repairs == []


async def test_a_limited_depth_and_all_tags_without_history_are_as_before(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.git("tag", "old", "HEAD~1")
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    async with checked_out(base, web, kept, repository.sha, options=LockCheckout(depth=2)) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "2"
    async with checked_out(base, web, kept, repository.sha, options=LockCheckout(tags=True)) as space:
        assert git(space, "tag") == "old"


# ── who may have it ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_refuses_the_credential_refuses_the_history_too(
    base: Path, web: Web, repository: KiciRepository, status: int
) -> None:
    kept, said = mirrors(base / "work"), Said()
    found = await fill(base, web, kept, repository.sha)
    web.git_status = status
    with pytest.raises(PreparationFailed, match="may not read it"):
        async with whole(base, web, kept, repository.sha, authorization=PASSWORD, said=said):
            pass
    assert found.exists()
    assert said.repairs == []


async def test_a_credential_that_is_revoked_between_the_commit_and_its_history_opens_no_history(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)

    class Revoking(Said):
        def __call__(self, line: str) -> None:
            if "whole history" in line:
                web.git_status = 403

    with pytest.raises(PreparationFailed, match="may not read it"):
        async with whole(base, web, kept, repository.sha, authorization=PASSWORD, said=Revoking()):
            pass


async def test_histories_are_apart_by_trust(base: Path, web: Web, repository: KiciRepository) -> None:
    trusted = repository.sha
    repository.git("checkout", "--quiet", "--detach")
    repository.write({"evil": "from a fork\n"})
    hostile = repository.commit()
    evil = repository.git("rev-parse", "HEAD:evil")
    repository.git("update-ref", "refs/pull/7/head", hostile)
    repository.git("checkout", "--quiet", "main")
    kept = mirrors(base / "work")
    async with whole(base, web, kept, hostile, workflow_sha=trusted, trusted=False):
        pass
    sent = web.git_bytes
    async with whole(base, web, kept, trusted) as space:
        found = subprocess.run(["git", "-C", str(space.src), "cat-file", "-e", evil], capture_output=True, check=False)
        assert found.returncode != 0
    assert web.git_bytes - sent > BIG
    assert {trusted, hostile, evil} <= objects(place(base, "unknown"))
    assert trusted in objects(place(base))
    assert not {hostile, evil} & objects(place(base))


@pytest.mark.skipif(not IS_ROOT, reason="a slot has no user of its own")
async def test_a_job_of_its_own_user_cannot_write_the_history_that_it_was_lent(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    owner = OWNERS[-1]
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha, owner=owner)
    before = contents(place(base))
    async with whole(base, web, kept, repository.sha, owner=owner) as space:
        kept_files = {path.stat().st_ino for path in place(base).iterdir()}
        packs = list((space.src / ".git/objects/pack").glob("*.pack"))
        assert {pack.stat().st_ino for pack in packs} <= kept_files
        for pack in packs:
            for attack in (f"echo evil >> {pack}", f"chmod u+w {pack}", f": > {pack}", f"ls {place(base)}"):
                done = subprocess.run([*as_user(owner), "bash", "-c", attack], capture_output=True, check=False)
                assert done.returncode != 0, attack
    assert contents(place(base)) == before


async def test_a_job_of_the_agents_user_writes_into_a_copy_of_the_history(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept, said = mirrors(base / "work"), Said()
    for _ in range(2):
        async with whole(base, web, kept, repository.sha, said=said) as space:
            for file in (space.src / ".git/objects/pack").iterdir():
                file.chmod(0o644)
                file.write_bytes(b"evil")
    async with whole(base, web, kept, repository.sha, said=said) as space:
        git(space, "fsck", "--full")
    assert said.repairs == []


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
async def test_a_history_that_is_damaged_costs_a_fetch_and_no_job(
    base: Path, web: Web, repository: KiciRepository, damage: str
) -> None:
    """Neither a job of commits that it has, nor one of a new commit; afterwards it is whole again."""
    kept, said = mirrors(base / "work"), Said()
    await fill(base, web, kept, repository.sha)
    repository.write({"small": "1\n"})
    await fill(base, web, kept, repository.commit())
    for again in ("same", "new"):
        DAMAGE[damage](place(base))
        if again == "new":
            repository.write({"small": "2\n"})
            repository.commit()
        expected = await refs_without(base, web, repository.sha)
        said.clear()
        async with whole(base, web, kept, repository.sha, said=said) as space:
            assert git(space, "rev-parse", "HEAD") == repository.sha
            assert refs(space) == expected
            assert git(space, "rev-parse", "--is-shallow-repository") == "false"
            git(space, "fsck", "--full")
        assert len(said.repairs) == 1, said
        said.clear()
        sent = web.git_bytes
        async with whole(base, web, kept, repository.sha, said=said):
            pass
        assert said.repairs == []
        assert web.git_bytes - sent < LITTLE


@pytest.mark.skipif(not IS_ROOT, reason="a slot has no user of its own")
@pytest.mark.parametrize("kind", ["pack", "idx"])
async def test_damage_of_a_file_that_both_mirrors_have_is_noticed_in_both(
    base: Path, web: Web, repository: KiciRepository, kind: str
) -> None:
    """The mirror of the commits and that of the history are links to the same file."""
    kept, said, owner = mirrors(base / "work"), Said(), OWNERS[-1]
    await fill(base, web, kept, repository.sha, owner=owner)
    (commits,) = (one for one in places(base) if not one.name.endswith(HISTORY))
    shared = the(commits, kind)
    assert shared.stat().st_ino in {path.stat().st_ino for path in place(base).iterdir()}
    data = bytearray(shared.read_bytes())
    data[len(data) // 2] ^= 1
    shared.write_bytes(data)
    async with whole(base, web, kept, repository.sha, owner=owner, said=said) as space:
        git(space, "fsck", "--full")
        assert git(space, "rev-list", "--count", "HEAD") == "3"
    assert len(said.repairs) == 2
    async with whole(base, web, kept, repository.sha, owner=owner, said=said):
        pass
    assert len(said.repairs) == 2


async def test_an_agent_that_was_killed_while_it_kept_history_leaves_nothing_that_harms(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept, said = mirrors(base / "work"), Said()
    found = await fill(base, web, kept, repository.sha)
    (found / f".{MANIFEST}").write_text("half")
    (found / "pack-0123.pack").write_bytes(b"PACK half")
    (found / "pack-0123.idx").write_bytes(b"half")
    repository.write({"small": "1"})
    async with whole(base, web, kept, repository.commit(), said=said):
        pass
    assert said.repairs == []
    assert not list(found.glob("*0123*"))


async def test_a_job_that_is_cancelled_while_it_fetches_history_changes_no_mirror(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    repository.write({"small": "1"})
    sha = repository.commit()
    async with checked_out(base, web, kept, sha):
        pass
    before = contents(place(base))
    running = asyncio.ensure_future(held_back(base, web, kept, sha))
    await asyncio.to_thread(web.git_asked.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert contents(place(base)) == before
    web.git_allowed.set()
    await held_back(base, web, kept, sha, hold=False)
    assert contents(place(base)) != before


async def held_back(base: Path, web: Web, kept: Mirrors, sha: str, *, hold: bool = True) -> None:
    """A job whose request for the history is not answered until `web.git_allowed` is set."""

    def said(line: str) -> None:
        if hold and "whole history" in line:
            web.git_allowed.clear()
            web.git_asked.clear()

    web.git_asked.clear()
    async with whole(base, web, kept, sha, said=said) as space:
        git(space, "fsck", "--full")


# ── several at once, and room ────────────────────────────────────────────────────────────────────────────────────────


@each_owner
@pytest.mark.parametrize("first", [True, False])
async def test_jobs_of_histories_beside_each_other(
    base: Path, web: Web, repository: KiciRepository, owner: Any, first: bool
) -> None:
    """Whether or not there is a mirror yet: what they leave is whole, and has the history once."""
    kept, said = mirrors(base / "work"), Said()
    if not first:
        await fill(base, web, kept, repository.sha, owner=owner)
    shas = []
    for number in range(3):
        repository.write({"small": f"new {number}\n"})
        shas.append(repository.commit())

    async def job(slot: int) -> None:
        async with whole(base, web, kept, shas[slot % 3], owner=owner, slot=slot, said=said) as space:
            assert git(space, "rev-list", "--count", "HEAD") == str(4 + slot % 3)
            assert git(space, "rev-list", "--count", "origin/main") == "6"

    await asyncio.gather(*map(job, range(5)))
    kept_packs.check(place(base), manifest(base))
    assert manifest(base).bytes < 2 * BIG
    sent = web.git_bytes
    await asyncio.gather(*map(job, range(5)))
    assert web.git_bytes - sent < 5 * LITTLE
    assert said.repairs == []


async def test_a_history_with_many_packs_goes_back_to_its_first_fetch(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is new since comes as one pack then, and what was fetched first is never fetched again."""
    monkeypatch.setattr("kici.agent.kept_packs.MAX_PACKS", 4)
    kept, said = mirrors(base / "work"), Said()
    await fill(base, web, kept, repository.sha)
    first = manifest(base).packs
    sent, counts = web.git_bytes, []
    for number in range(8):
        repository.write({"small": f"new {number}\n"})
        sha = repository.commit()
        for _ in range(2):
            async with whole(base, web, kept, sha, said=said) as space:
                assert git(space, "rev-list", "--count", "HEAD") == str(4 + number)
                git(space, "fsck", "--full")
        now = manifest(base)
        kept_packs.check(place(base), now)
        assert now.packs[: len(first)] == first
        assert {path.stem for path in place(base).glob("*.pack")} == {pack.name for pack in now.packs}
        counts.append(len(now.packs) - len(first))
    assert counts == [1, 2, 3, 1, 2, 3, 1, 2]
    assert web.git_bytes - sent < 16 * LITTLE
    assert said.repairs == []


async def test_a_full_history_lends_all_it_has_where_the_commit_is_there(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.kept_packs.MAX_PACKS", 2)
    kept = mirrors(base / "work")
    await fill(base, web, kept, repository.sha)
    (repository.root / "small").write_bytes(os.urandom(BIG))
    sha = repository.commit()
    await fill(base, web, kept, sha)
    assert manifest(base).is_full
    before, sent = contents(place(base)), web.git_bytes
    repository.git("branch", "another", "feature")
    repository.git("checkout", "--quiet", "another")
    repository.commit()
    async with whole(base, web, kept, sha) as space:
        assert "refs/remotes/origin/another" in refs(space)
    assert web.git_bytes - sent < LITTLE
    assert contents(place(base)) == before


async def test_a_history_that_has_become_much_larger_than_its_first_fetch_is_made_anew(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.kept_packs.SPARE_BYTES", 0)
    kept, said = mirrors(base / "work"), Said()
    await fill(base, web, kept, repository.sha)
    for _ in range(2):
        (repository.root / "small").write_bytes(os.urandom(BIG))
        sha = repository.commit()
        await fill(base, web, kept, sha)
    assert manifest(base).is_large
    sha = repository.commit()
    await fill(base, web, kept, sha, said=said)
    now = manifest(base)
    assert now.first == len(now.packs)
    assert set(now.first_tips) == set(now.tips) >= {sha}
    assert said.repairs == []


async def test_a_history_that_is_larger_than_the_limit_is_not_kept(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    kept = mirrors(base / "work", KICI_MIRRORS_BYTES=str(BIG // 2))
    for _ in range(2):
        async with whole(base, web, kept, repository.sha) as space:
            assert git(space, "rev-list", "--count", "HEAD") == "3"
    assert [one.name for one in places(base) if one.name.endswith(HISTORY)] == []


async def test_a_history_that_a_job_uses_now_is_not_evicted(base: Path, web: Web, repository: KiciRepository) -> None:
    kept = mirrors(base / "work")
    found = await fill(base, web, kept, repository.sha)
    repository.write({"small": "1"})
    sha = repository.commit()
    async with checked_out(base, web, kept, sha):
        pass
    running = asyncio.ensure_future(held_back(base, web, kept, sha))
    await asyncio.to_thread(held, web)
    await asyncio.to_thread(kept.evict, 10**12)
    assert places(base) == [found]
    web.git_allowed.set()
    await running
    assert await asyncio.to_thread(kept.evict, 10**12) > BIG
    assert not found.exists()
    await held_back(base, web, kept, sha, hold=False)


def held(web: Web) -> None:
    """Wait until the request for the history is there."""
    while web.git_allowed.is_set():
        assert web.git_asked.wait(20)
    assert web.git_asked.wait(20)


@pytest.mark.skipif(not IS_ROOT, reason="only root may mount a small file system")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("least", ["0", "209715200"])
async def test_a_disk_without_room_for_a_history_costs_no_job(
    base: Path, web: Web, repository: KiciRepository, again: bool, least: str
) -> None:
    """The packs are copied here: there is room for the job's, and none for the mirror's, or for what is new in it."""
    work = base / "work"
    work.mkdir()
    if not again:
        with_large_history(repository)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", work], check=True)
    try:
        kept = mirrors(work, KICI_MIN_FREE_BYTES=least)
        if again:
            await fill(base, web, mirrors(work, KICI_MIN_FREE_BYTES="0"), repository.sha)
            with_large_history(repository)
        shutil.rmtree(work / "trash", ignore_errors=True)
        (work / "filler").write_bytes(bytes(10 * 1024**2))
        async with whole(base, web, kept, repository.sha) as space:
            assert git(space, "rev-parse", "--is-shallow-repository") == "false"
            git(space, "fsck", "--full")
            kept_bytes = sum(path.stat().st_size for one in places(base) for path in one.iterdir())
            assert kept_bytes < 2 * BIG
        (work / "filler").unlink()
        shutil.rmtree(work / "trash")
        async with whole(base, web, mirrors(work, KICI_MIN_FREE_BYTES="0"), repository.sha) as space:
            git(space, "fsck", "--full")
        kept_packs.check(place(base), manifest(base))
    finally:
        subprocess.run(["umount", "--lazy", work], check=True)


def with_large_history(repository: KiciRepository) -> None:
    (repository.root / "large").write_bytes(os.urandom(4 * 1024**2))
    repository.commit()
    (repository.root / "large").unlink()
    repository.commit()
