from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kici.agent import checkout, workspace
from kici.agent import repository as repository_files
from kici.agent.errors import PreparationFailed
from kici.agent.git import Git, Remote
from kici.agent.sandbox.bubblewrap import find_bwrap
from kici.agent.workspace import Owner, Workspace
from kici.wire.agent import Checkout, Dispatch
from tests.support.kici_repository import KiciRepository
from tests.support.mirrors import no_mirrors
from tests.support.web import Web

OWNERS = [None, Owner(60_999, 60_999)] if os.geteuid() == 0 else [None]


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    return KiciRepository(base / "repositories" / "repo", {"build": ["true"]})


@asynccontextmanager
async def space_of(base: Path, owner: Owner | None) -> AsyncIterator[Workspace]:
    """Below a directory that only we may enter."""
    (base / "work").mkdir(mode=0o700, exist_ok=True)
    async with asyncio.timeout(30):
        with workspace.opened(base / "work", 0, owner) as space:
            yield space


async def fetched(space: Workspace, web: Web, wanted: Checkout, authorization: str = "") -> Git:
    return await checkout.fetch(space, Remote(wanted.url, authorization), wanted, no_mirrors(space.root), print)


def wanted(web: Web, repository: KiciRepository, sha: str = "", workflow_sha: str = "") -> Checkout:
    sha = sha or repository.sha
    return Checkout(f"{web.url}/git/repo/.git", sha, workflow_sha or sha)


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_exactly_the_commit_is_checked_out_for_the_slots_user(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    first = repository.sha
    repository.write({"README.md": "later\n"})
    repository.commit()
    async with space_of(base, owner) as space:
        git = await fetched(space, web, wanted(web, repository, first))
        source = Remote(wanted(web, repository).url, "")
        await checkout.work_tree(git, source, wanted(web, repository, first), True, no_mirrors(base), print)
        assert (space.src / "README.md").read_text() == "hello\n"
        assert (await git.run("rev-parse", "HEAD")).decode().strip() == first
        assert await git.run("status", "--porcelain") == b""
        if owner:
            assert {path.lstat().st_uid for path in space.src.rglob("*")} == {owner.uid}
        root = space.root
    assert not root.exists()


async def test_the_workflows_may_come_from_another_commit(base: Path, web: Web, repository: KiciRepository) -> None:
    trusted = repository.sha
    repository.write({".kici/workflows/ci.py": "evil\n"})
    hostile = repository.commit()
    async with space_of(base, None) as space:
        git = await fetched(space, web, wanted(web, repository, hostile, trusted))
        files = await checkout.kici_files(git, trusted)
        assert sorted(files) == ["kici.lock.json", "workflows/ci.py"]
        assert b"evil" not in files["workflows/ci.py"]


async def test_nothing_that_the_repository_names_is_run(base: Path, web: Web, repository: KiciRepository) -> None:
    mark = base / "ran"
    repository.write({".gitattributes": "* filter=evil diff=evil merge=evil\n", ".gitconfig": "[core]\n"})
    repository.git("config", "filter.evil.smudge", f"touch {mark}")
    repository.commit()
    async with space_of(base, None) as space:
        (space.home / ".gitconfig").write_text(
            f'[filter "evil"]\n smudge = touch {mark}\n required = true\n[core]\n hooksPath = {base}\n'
        )
        (base / "post-checkout").write_text(f"#!/bin/sh\ntouch {mark}\n")
        (base / "post-checkout").chmod(0o755)
        git = await fetched(space, web, wanted(web, repository))
        source = Remote(wanted(web, repository).url, "")
        await checkout.work_tree(git, source, wanted(web, repository), True, no_mirrors(base), print)
        assert (space.src / ".gitattributes").exists()
    assert not mark.exists()


async def test_the_credential_goes_to_its_origin_in_a_header_and_nowhere_else(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    web.authorization = "Basic " + base64.b64encode(b"x-access-token:hunter2").decode()
    dispatch = Dispatch(
        run_id="r", job_id="j", attempt=1, workflow="ci", job="build", name="build",
        checkout=Checkout(f"{web.url}/git/repo/.git", repository.sha, repository.sha, password="hunter2"),
        lock_sha256="", job_token="kjt_1",
    )  # fmt: skip
    async with space_of(base, None) as space:
        source = checkout.remote(dispatch, "http://orchestrator")
        git = await checkout.fetch(space, source, dispatch.checkout, no_mirrors(base), print)
        await checkout.work_tree(git, source, dispatch.checkout, True, no_mirrors(base), print)
        kept = b"".join(path.read_bytes() for path in (space.src / ".git").rglob("*") if path.is_file())
    assert b"hunter2" not in kept
    assert b"eC1hY2Nlc3MtdG9rZW46aHVudGVyMg" not in kept


async def test_a_path_is_below_the_orchestrator_and_opened_by_the_jobs_token(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    web.authorization = "Bearer kjt_1"
    dispatch = Dispatch(
        run_id="r", job_id="j", attempt=1, workflow="ci", job="build", name="build",
        checkout=Checkout("/git/repo/.git", repository.sha, repository.sha), lock_sha256="", job_token="kjt_1",
    )  # fmt: skip
    async with space_of(base, None) as space:
        source = checkout.remote(dispatch, web.url)
        git = await checkout.fetch(space, source, dispatch.checkout, no_mirrors(base), print)
        assert await checkout.kici_files(git, repository.sha)


async def test_a_refusal_is_told_without_trying_again(base: Path, web: Web, repository: KiciRepository) -> None:
    web.authorization = "Bearer other"
    said: list[str] = []
    async with space_of(base, None) as space:
        with pytest.raises(PreparationFailed, match="403"):
            source = Remote(wanted(web, repository).url, "")
            await checkout.fetch(space, source, wanted(web, repository), no_mirrors(base), said.append)
    assert not any("trying again" in text for text in said)


async def test_a_redirect_is_not_followed(base: Path, web: Web, repository: KiciRepository) -> None:
    asked = len(web.requests)
    web.redirect_to = web.url + "/elsewhere"
    async with space_of(base, None) as space:
        with pytest.raises(PreparationFailed):
            await fetched(space, web, wanted(web, repository), "Bearer hunter2")
    assert not any("/elsewhere" in path for _, path, _ in web.requests[asked:])


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "ext::sh -c touch% /tmp/x",
        "ssh://host/x",
        "-u/x",
        "http://user:pass@host/x",
        "git://h/x",
        'http://h/"x',
    ],
)
def test_only_plain_http_addresses_are_fetched_from(url: str) -> None:
    with pytest.raises(PreparationFailed, match="plain http"):
        Remote(url, "")


async def test_a_name_that_is_no_full_commit_id_is_refused(base: Path, web: Web, repository: KiciRepository) -> None:
    for sha in ("main", "--upload-pack=touch", repository.sha[:12]):
        async with space_of(base, None) as space:
            with pytest.raises(PreparationFailed, match="no full commit id"):
                await fetched(space, web, wanted(web, repository, sha))


async def test_a_commit_that_does_not_exist_fails_at_once(base: Path, web: Web, repository: KiciRepository) -> None:
    said: list[str] = []
    async with space_of(base, None) as space:
        missing = wanted(web, repository, "0" * 39 + "1")
        with pytest.raises(PreparationFailed, match="not our ref"):
            await checkout.fetch(space, Remote(missing.url, ""), missing, no_mirrors(base), said.append)
    assert not any("trying again" in text for text in said)


async def test_a_link_under_kici_is_refused(base: Path, web: Web, repository: KiciRepository) -> None:
    (repository.root / ".kici/secrets.py").symlink_to("/etc/passwd")
    repository.commit()
    async with space_of(base, None) as space:
        git = await fetched(space, web, wanted(web, repository))
        with pytest.raises(PreparationFailed, match=r"\.kici/secrets\.py is a symbolic link"):
            await checkout.kici_files(git, repository.sha)


async def test_kici_itself_being_a_link_is_refused(base: Path, web: Web, repository: KiciRepository) -> None:
    repository.git("mv", ".kici", "other")
    (repository.root / ".kici").symlink_to("other")
    repository.commit()
    async with space_of(base, None) as space:
        git = await fetched(space, web, wanted(web, repository))
        with pytest.raises(PreparationFailed, match="is a symbolic link"):
            await checkout.kici_files(git, repository.sha)


async def test_a_cancelled_fetch_leaves_no_process(base: Path, web: Web, repository: KiciRepository) -> None:
    web.git_allowed.clear()
    async with space_of(base, None) as space:
        fetching = asyncio.ensure_future(fetched(space, web, wanted(web, repository)))
        await asyncio.to_thread(web.git_asked.wait, 10)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        left = [place for place in Path("/proc").glob("[0-9]*/cwd") if _points_to(place, space.src)]
    assert left == []


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_a_git_that_is_cancelled_while_it_starts_ends(base: Path, owner: Owner | None) -> None:
    """At any moment of it: Python's own start of a process does not always."""
    async with space_of(base, owner) as space:
        git = Git(space)
        repository_files.make(git, "http://host/repo")
        for number in range(150):
            asking = asyncio.ensure_future(git.run("rev-parse", "--git-dir"))
            await asyncio.sleep(0 if number % 2 else random.uniform(0, 0.006))
            asking.cancel()
            ended, _ = await asyncio.wait([asking], timeout=10)
            assert ended


def _points_to(link: Path, place: Path) -> bool:
    try:
        return link.readlink() == place
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root agent's git has a view of its own")
async def test_a_mount_of_the_host_that_goes_while_git_starts_costs_nothing(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bwrap fails then before git has begun: containers that end beside the agent did that."""
    failures = base / "failures"
    failures.write_text("..")
    wrapper = base / "bwrap"
    wrapper.write_text(
        "#!/bin/bash\n"
        f"left=$(<{failures})\n"
        f'if [[ $left ]]; then printf %s "${{left:1}}" >{failures}\n'
        "  echo \"bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags: remount"
        ' \\"/newroot/x/merged\\": No such file or directory" >&2; exit 1; fi\n'
        f'exec {find_bwrap()} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setattr("kici.agent.git.find_bwrap", lambda: str(wrapper))
    async with space_of(base, Owner(60_999, 60_999)) as space:
        git = await fetched(space, web, wanted(web, repository))
        assert (await git.run("rev-parse", "refs/kici/0")).decode().strip() == repository.sha
        assert failures.read_text() == ""
        failures.write_text("." * 100)
        with pytest.raises(PreparationFailed, match="bwrap: Can't bind mount"):
            await git.run("rev-parse", "refs/kici/0")
