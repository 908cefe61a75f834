"""What a job may ask for in its checkout: history, tags, directories, submodules, LFS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kici.agent import checkout, fetching, mirror_places, workspace
from kici.agent.errors import PreparationFailed
from kici.agent.git import Remote, basic
from kici.agent.workspace import Owner, Workspace
from kici.engine.lockfile import LockCheckout, SubmoduleLevels
from kici.wire.agent import Checkout
from tests.support.kici_repository import KiciRepository
from tests.support.mirrors import mirrors as mirrors_in
from tests.support.mirrors import no_mirrors
from tests.support.web import Web

OWNERS = [None, Owner(60_999, 60_999)] if os.geteuid() == 0 else [None]
FIRST, ALL = SubmoduleLevels.FIRST, SubmoduleLevels.ALL
PASSWORD = basic("", "hunter2")
needs_lfs = pytest.mark.skipif(
    shutil.which("git-lfs") is None and "CI" not in os.environ, reason="git-lfs is not installed"
)


@pytest.fixture(autouse=True, params=["alone", "by a mirror"])
def way(request: pytest.FixtureRequest, base: Path) -> None:
    """Each of these as the only job of the repository, and as the second one of an agent that keeps mirrors."""
    if request.param == "by a mirror":
        (base / "work" / mirror_places.NAME).mkdir(mode=0o700, parents=True)


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    return KiciRepository(base / "repositories" / "repo", {"build": ["true"]})


@pytest.fixture
def other(base: Path) -> KiciRepository:
    return KiciRepository(base / "repositories" / "other", {"build": ["true"]})


@asynccontextmanager
async def checked_out(
    base: Path,
    web: Web,
    options: LockCheckout | bool,
    sha: str,
    *,
    ref: str = "",
    workflow_sha: str = "",
    owner: Owner | None = None,
    authorization: str = "",
    said: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[Workspace]:
    (base / "work").mkdir(mode=0o700, exist_ok=True)
    wanted = Checkout(f"{web.url}/git/repo/.git", sha, workflow_sha or sha, ref)
    source = Remote(wanted.url, authorization)
    is_second = (base / "work" / mirror_places.NAME).exists()
    kept = mirrors_in(base / "work") if is_second else no_mirrors(base / "work")
    if is_second:
        troubles, web.unavailable, web.cut_answers = (web.unavailable, web.cut_answers), 0, 0
        with contextlib.suppress(PreparationFailed), workspace.opened(base / "work", 1, owner) as space:
            await checkout.work_tree(
                await checkout.fetch(space, source, wanted, kept, print), source, wanted, options, kept, print
            )
        web.unavailable, web.cut_answers = troubles
    with workspace.opened(base / "work", 0, owner) as space:
        async with asyncio.timeout(60):
            git = await checkout.fetch(space, source, wanted, kept, said)
            await checkout.work_tree(git, source, wanted, options, kept, said)
        yield space


def git(space: Workspace, *arguments: str) -> str:
    """As a step runs it: without a credential."""
    done = subprocess.run(
        ["git", "-c", f"safe.directory={space.src}", "-C", str(space.src), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def add_submodule(repository: KiciRepository, sha: str, url: str, path: str = "lib", name: str = "lib") -> str:
    repository.write({".gitmodules": f'[submodule "{name}"]\n\tpath = {path}\n\turl = {url}\n'})
    repository.git("add", "--all")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{sha},{path}")
    repository.git("commit", "--quiet", "--message=submodule")
    return repository.sha


# ── history ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_the_whole_history_finds_the_merge_base_without_a_credential(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    forked = repository.sha
    repository.git("checkout", "--quiet", "-b", "feature")
    repository.write({"a": "1"})
    repository.commit()
    head = repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.write({"b": "1"})
    repository.commit()
    web.authorization = PASSWORD
    async with checked_out(base, web, LockCheckout(depth=0), head, owner=owner, authorization=PASSWORD) as space:
        web.authorization = "nobody gets in any more"
        assert git(space, "merge-base", "origin/main", "HEAD") == forked
        assert git(space, "rev-list", "--count", "HEAD") == "3"


async def test_so_many_commits_as_are_asked_for(base: Path, web: Web, repository: KiciRepository) -> None:
    for _ in range(5):
        repository.commit()
    async with checked_out(base, web, LockCheckout(depth=3), repository.sha) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "3"


async def test_the_history_of_a_repository_with_one_commit(base: Path, web: Web, repository: KiciRepository) -> None:
    async with checked_out(base, web, LockCheckout(depth=0), repository.sha) as space:
        assert git(space, "rev-list", "--count", "HEAD") == "1"


async def test_tags_are_those_of_the_commit_or_all(base: Path, web: Web, repository: KiciRepository) -> None:
    repository.git("tag", "v1")
    repository.commit()
    repository.git("tag", "--annotate", "--message=two", "v2")
    async with checked_out(base, web, True, repository.sha) as space:
        assert git(space, "tag") == "v2"
    async with checked_out(base, web, LockCheckout(tags=True), repository.sha) as space:
        assert git(space, "tag").split() == ["v1", "v2"]


# ── refs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ref", ["", "main", "gone", "refs/heads/main", "refs/pull/7/merge", "v1"])
async def test_a_server_that_gives_no_commit_by_its_name_is_asked_for_refs(
    base: Path, web: Web, repository: KiciRepository, ref: str
) -> None:
    wanted = repository.sha
    repository.git("update-ref", "refs/pull/7/merge", wanted)
    repository.git("tag", "--annotate", "--message=one", "v1")
    repository.commit()
    repository.git("tag", "--force", "--annotate", "--message=moved", "v1")
    repository.git("update-ref", "refs/pull/7/merge", wanted)
    repository.git("config", "transfer.hideRefs", "refs/none")
    web.git_protocol_0 = True
    async with checked_out(base, web, True, wanted, ref=ref) as space:
        assert git(space, "rev-parse", "HEAD") == wanted


async def test_whole_history_from_a_server_that_gives_no_commit_by_its_name(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.commit()
    wanted = repository.sha
    repository.commit()
    web.git_protocol_0 = True
    async with checked_out(base, web, LockCheckout(depth=0), wanted, ref="main") as space:
        assert git(space, "rev-list", "--count", "HEAD") == "2"


async def test_a_commit_of_a_deleted_or_force_pushed_branch_is_found_by_its_name(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    repository.write({"x": "lost"})
    lost = repository.commit()
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    async with checked_out(base, web, LockCheckout(depth=0), lost, ref="deleted") as space:
        assert (space.src / "x").read_text() == "lost"


async def test_a_commit_that_no_ref_leads_to_any_more_says_what_to_do(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    lost = repository.commit()
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    web.git_protocol_0 = True
    with pytest.raises(PreparationFailed, match=r"main does not lead to it.*start a run of its present commit"):
        async with checked_out(base, web, True, lost, ref="main"):
            pass


@pytest.mark.parametrize(
    "ref",
    ["--upload-pack=touch /tmp/x", "-x", "a\nb", "a..b", "a@{1}", "x" * 300, "a b", "refs/heads/\u202egpj", "a.lock"],
)
async def test_a_hostile_name_of_a_ref_reaches_no_argument(
    base: Path, web: Web, repository: KiciRepository, ref: str
) -> None:
    lost = repository.sha
    repository.git("commit", "--quiet", "--amend", "--message=other")
    web.git_protocol_0 = True
    with pytest.raises(PreparationFailed, match="no name of a branch or tag"):
        async with checked_out(base, web, True, lost, ref=ref):
            pass


async def test_a_branch_with_letters_of_the_whole_world(base: Path, web: Web, repository: KiciRepository) -> None:
    wanted = repository.sha
    repository.git("checkout", "--quiet", "-b", "größe/日本")
    repository.commit()
    repository.git("branch", "--quiet", "--delete", "--force", "main")
    web.git_protocol_0 = True
    async with checked_out(base, web, True, wanted, ref="größe/日本") as space:
        assert git(space, "rev-parse", "HEAD") == wanted


# ── the network ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_fails_for_a_while_is_asked_again(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.0)
    said: list[str] = []
    web.unavailable, web.cut_answers = 1, 1
    async with checked_out(base, web, True, repository.sha, said=said.append) as space:
        assert (space.src / "README.md").exists()
    # A mirror that has the commit needs no pack, so nothing of it can be cut.
    assert len([text for text in said if "trying again" in text]) == 2 - web.cut_answers


# ── sparse ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_only_the_directories_that_are_named(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    repository.write({"src/app/a": "1", "src/web/b": "1", "src/c": "1", "docs/d": "1", "-x/e": "1"})
    repository.commit()
    async with checked_out(base, web, LockCheckout(sparse=("src/app", "-x")), repository.sha, owner=owner) as space:
        files = {str(path.relative_to(space.src)) for path in space.src.rglob("*") if ".git" not in path.parts}
        assert {"src/app/a", "src/c", "README.md", "-x/e"} <= files
        assert not {"src/web", "docs"} & files
        assert git(space, "status", "--porcelain") == ""


async def test_a_directory_that_the_commit_does_not_have_is_named(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    with pytest.raises(PreparationFailed, match="sparse names 'src/ap', and the commit has no such directory"):
        async with checked_out(base, web, LockCheckout(sparse=("src/ap",)), repository.sha):
            pass


# ── submodules ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", OWNERS, ids=str)
@pytest.mark.parametrize("relative", [True, False])
async def test_submodules_are_filled_with_the_credential_of_their_own_origin(
    base: Path, web: Web, repository: KiciRepository, other: KiciRepository, owner: Owner | None, relative: bool
) -> None:
    url = "../../other/.git" if relative else f"{web.url}/git/other/.git"
    sha = add_submodule(repository, other.sha, url, "deps/lib")
    web.authorization = PASSWORD
    options = LockCheckout(submodules=FIRST)
    async with checked_out(base, web, options, sha, owner=owner, authorization=PASSWORD) as space:
        assert (space.src / "deps/lib/README.md").read_text() == "hello\n"
        assert git(space, "status", "--porcelain") == ""
        if owner:
            assert (space.src / "deps/lib/README.md").stat().st_uid == owner.uid
        kept = b"".join(path.read_bytes() for path in space.src.rglob("*") if path.is_file())
    assert b"hunter2" not in kept
    assert PASSWORD.encode().split()[1] not in kept


async def test_submodules_of_submodules_where_they_are_asked_for(
    base: Path, web: Web, repository: KiciRepository, other: KiciRepository
) -> None:
    inner = other.sha
    outer = add_submodule(other, inner, "../.git", "self")
    sha = add_submodule(repository, outer, "../../other/.git")
    async with checked_out(base, web, LockCheckout(submodules=FIRST), sha) as space:
        assert list((space.src / "lib/self").iterdir()) == []
    async with checked_out(base, web, LockCheckout(submodules=ALL), sha) as space:
        assert (space.src / "lib/self/README.md").exists()


async def test_submodules_that_go_on_and_on_are_refused(
    base: Path, web: Web, repository: KiciRepository, other: KiciRepository
) -> None:
    sha = other.sha
    for _ in range(checkout.MAX_LEVELS + 2):
        sha = add_submodule(other, sha, "../.git", "self")
    sha = add_submodule(repository, sha, "../../other/.git")
    with pytest.raises(PreparationFailed, match="nested deeper than 10 levels"):
        async with checked_out(base, web, LockCheckout(submodules=ALL), sha):
            pass


async def test_a_submodule_of_another_origin_gets_no_credential(
    base: Path, web: Web, repository: KiciRepository, other: KiciRepository
) -> None:
    with Web(base / "repositories").running() as elsewhere:
        sha = add_submodule(repository, other.sha, f"{elsewhere.url}/git/other/.git")
        web.authorization = PASSWORD
        async with checked_out(base, web, LockCheckout(submodules=FIRST), sha, authorization=PASSWORD) as space:
            assert (space.src / "lib/README.md").exists()
        assert elsewhere.requests
        assert {given for _, _, given in elsewhere.requests} == {""}


async def test_the_head_of_an_untrusted_pull_request_spends_no_credential_on_its_submodules(
    base: Path, web: Web, repository: KiciRepository, other: KiciRepository
) -> None:
    trusted = repository.sha
    sha = add_submodule(repository, other.sha, "../../other/.git")
    web.authorization = PASSWORD
    with pytest.raises(PreparationFailed, match=r"submodule lib: .*may not read it"):
        async with checked_out(
            base, web, LockCheckout(submodules=FIRST), sha, workflow_sha=trusted, authorization=PASSWORD
        ):
            pass
    assert {given for _, path, given in web.requests if "/other/" in path} == {""}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("--upload-pack=touch", "only http"),
        ("file:///etc", "only http"),
        ("/etc", "only http"),
        ("ext::sh -c touch", "only http"),
        ("ssh://host/x", "only http"),
        ("git@host:x", "only http"),
        ("https://user:password@host/x", "only http"),
        ("http://[::1/x", "only http"),
        ("../../../../../../evil", "leaves http"),
    ],
)
async def test_the_address_of_a_hostile_submodule_is_refused_with_its_name(
    base: Path, web: Web, repository: KiciRepository, url: str, said: str
) -> None:
    sha = add_submodule(repository, repository.sha, url, "lib", "the one")
    with pytest.raises(PreparationFailed, match=f"submodule 'the one' has the url .*{said}"):
        async with checked_out(base, web, LockCheckout(submodules=FIRST), sha):
            pass


async def test_a_submodule_that_gitmodules_does_not_know_is_named(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    add_submodule(repository, repository.sha, "../.git", "lib")
    repository.write({".gitmodules": '[submodule "../../evil"]\n\tpath = ../../../tmp/x\n\turl = ../.git\n'})
    repository.git("commit", "--quiet", "--message=another", ".gitmodules")
    sha = repository.sha
    with pytest.raises(PreparationFailed, match="submodule 'lib' has no url"):
        async with checked_out(base, web, LockCheckout(submodules=FIRST), sha):
            pass


# ── LFS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_lfs(repository: KiciRepository, web: Web, content: bytes, *, stored: bool = True) -> str:
    oid = hashlib.sha256(content).hexdigest()
    if stored:
        web.lfs[oid] = content
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
    repository.write({".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "big.bin": pointer})
    return repository.commit()


@needs_lfs
@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_files_that_lfs_keeps_are_fetched_with_the_credential(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    content = os.urandom(100_000)
    sha = add_lfs(repository, web, content)
    web.authorization = PASSWORD
    async with checked_out(base, web, LockCheckout(lfs=True), sha, owner=owner, authorization=PASSWORD) as space:
        assert (space.src / "big.bin").read_bytes() == content
        if owner:
            assert (space.src / "big.bin").stat().st_uid == owner.uid
        assert git(space, "status", "--porcelain") == ""
        kept = b"".join(path.read_bytes() for path in (space.src / ".git").rglob("*") if path.is_file())
    assert b"hunter2" not in kept
    assert PASSWORD.encode().split()[1] not in kept


async def test_without_lfs_the_pointers_stay(base: Path, web: Web, repository: KiciRepository) -> None:
    sha = add_lfs(repository, web, b"x")
    async with checked_out(base, web, True, sha) as space:
        assert (space.src / "big.bin").read_text().startswith("version https://git-lfs")


@needs_lfs
async def test_an_object_that_lfs_does_not_have_fails_the_job(base: Path, web: Web, repository: KiciRepository) -> None:
    sha = add_lfs(repository, web, b"x", stored=False)
    with pytest.raises(PreparationFailed, match=r"(?s)Git LFS: .*does not exist"):
        async with checked_out(base, web, LockCheckout(lfs=True), sha):
            pass


@needs_lfs
@pytest.mark.parametrize("form", ["http", "file"])
async def test_a_hostile_lfsconfig_gets_no_credential(
    base: Path, web: Web, repository: KiciRepository, form: str
) -> None:
    with Web(base / "repositories").running() as elsewhere:
        url = f"{elsewhere.url}/git/repo/info/lfs" if form == "http" else f"file://{base}/repositories/repo/.git"
        repository.write({".lfsconfig": f"[lfs]\n\turl = {url}\n"})
        sha = add_lfs(repository, web, b"x")
        with pytest.raises(PreparationFailed, match=r"\.lfsconfig names"):
            async with checked_out(base, web, LockCheckout(lfs=True), sha, authorization=PASSWORD):
                pass
        assert elsewhere.requests == []


@needs_lfs
async def test_an_lfsconfig_cannot_name_a_program(base: Path, web: Web, repository: KiciRepository) -> None:
    mark = base / "ran"
    repository.write(
        {
            ".lfsconfig": f'[lfs]\n\tstandalonetransferagent = evil\n[lfs "customtransfer.evil"]\n\tpath = touch\n'
            f'\targs = {mark}\n[lfs "extension.evil"]\n\tsmudge = touch {mark}\n\tclean = touch {mark}\n'
        }
    )
    sha = add_lfs(repository, web, b"content")
    async with checked_out(base, web, LockCheckout(lfs=True), sha) as space:
        assert (space.src / "big.bin").read_bytes() == b"content"
    assert not mark.exists()


async def test_a_machine_without_git_lfs_says_so(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = base / "programs"
    programs.mkdir()
    for name in ("git", "rm", "chmod", "setpriv", "bwrap"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(PreparationFailed, match="no git-lfs: install it"):
        async with checked_out(base, web, LockCheckout(lfs=True), repository.sha):
            pass


def test_the_password_is_in_the_header_that_is_looked_for() -> None:
    assert base64.b64decode(PASSWORD.split()[1]) == b"x-access-token:hunter2"
