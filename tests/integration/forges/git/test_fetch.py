from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kici.forges.git.errors import AccessDenied, BadRemote, CommitMissing, GitUnavailable
from kici.forges.git.fetch import Repositories
from kici.forges.git.objects import TooLarge
from kici.forges.git.refs import Resolved
from kici.forges.git.remote import Remote
from tests.support.forge import Forge
from tests.support.git import WorkTree, bare
from tests.support.serving import serving

LOCK = ".kici/kici.lock.json"
LIMIT = 100_000


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    return WorkTree(tmp_path / "work", bare(tmp_path / "forge" / "team" / "app.git"))


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge", password="s3cret")


@pytest.fixture
async def url(forge: Forge) -> AsyncIterator[str]:
    async with serving(forge) as base:
        yield f"{base}/team/app.git"


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path / "mirrors", {"team/app": tmp_path / "forge" / "team" / "app.git"})


@pytest.fixture(params=["remote", "local"])
def remote(request: pytest.FixtureRequest, url: str) -> Remote:
    """The same promises hold for a forge behind HTTP and for a repository of our own."""
    return Remote(url, password="s3cret") if request.param == "remote" else Remote("/git/team/app")


async def test_files_are_read_at_the_commit_and_not_at_the_branch(
    work: WorkTree, repositories: Repositories, remote: Remote
) -> None:
    first = work.commit({LOCK: "one", "b.txt": b"\xff\0"})
    second = work.commit({LOCK: "two", "b.txt": None})
    work.push()
    assert await repositories.blobs(remote, first, [LOCK, "b.txt"], max_bytes=LIMIT) == {
        LOCK: b"one",
        "b.txt": b"\xff\0",
    }
    assert await repositories.blobs(remote, second, [LOCK, "b.txt"], max_bytes=LIMIT) == {LOCK: b"two", "b.txt": None}


async def test_a_directory_is_no_file_and_a_large_file_costs_only_itself(
    work: WorkTree, repositories: Repositories, remote: Remote
) -> None:
    sha = work.commit({"big": "x" * (LIMIT + 1), "small": "y", f"{LOCK}/inside": "z"})
    work.push()
    assert await repositories.blobs(remote, sha, ["big", LOCK, "small"], max_bytes=LIMIT) == {
        "big": TooLarge(LIMIT + 1),
        LOCK: None,
        "small": b"y",
    }


async def test_a_commit_that_no_ref_names_any_more_is_still_read(
    work: WorkTree, repositories: Repositories, remote: Remote
) -> None:
    work.commit({LOCK: "base"})
    gone = work.commit({LOCK: "gone"})
    work.push()
    work.git("reset", "-q", "--hard", "HEAD~1")
    work.push()
    assert (await repositories.blobs(remote, gone, [LOCK], max_bytes=LIMIT))[LOCK] == b"gone"


async def test_a_commit_that_never_was_is_missing_and_no_outage(
    work: WorkTree, repositories: Repositories, remote: Remote
) -> None:
    work.commit({LOCK: "x"})
    work.push()
    with pytest.raises(CommitMissing):
        await repositories.blobs(remote, "1" * 40, [LOCK], max_bytes=LIMIT)


async def test_only_what_is_asked_for_is_downloaded(
    work: WorkTree, repositories: Repositories, url: str, tmp_path: Path
) -> None:
    sha = work.commit({LOCK: "x", "huge.bin": os.urandom(3_000_000)})
    work.push()
    await repositories.blobs(Remote(url, password="s3cret"), sha, [LOCK], max_bytes=LIMIT)
    assert sum(file.stat().st_size for file in (tmp_path / "mirrors").rglob("*.pack")) < 100_000


async def test_an_outage_is_told_apart_from_a_missing_file_and_a_later_call_works(
    work: WorkTree, repositories: Repositories, forge: Forge, url: str
) -> None:
    sha = work.commit({LOCK: "x"})
    work.push()
    forge.down = True
    with pytest.raises(GitUnavailable, match="503"):
        await repositories.blobs(Remote(url, password="s3cret"), sha, [LOCK], max_bytes=LIMIT)
    with pytest.raises(GitUnavailable):
        await repositories.resolve(Remote(url, password="s3cret"), "main")
    forge.down = False
    assert (await repositories.blobs(Remote(url, password="s3cret"), sha, [LOCK], max_bytes=LIMIT))[LOCK] == b"x"


async def test_a_forge_that_does_not_listen_is_an_outage(repositories: Repositories) -> None:
    with pytest.raises(GitUnavailable):
        await repositories.blobs(Remote("http://127.0.0.1:9/x"), "1" * 40, [LOCK], max_bytes=LIMIT)


async def test_a_forge_that_never_answers_is_stopped_in_time(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        closed.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    repositories = Repositories(tmp_path / "mirrors", {}, timeout_s=0.3)
    async with asyncio.timeout(10), silent:
        with pytest.raises(GitUnavailable, match="took longer"):
            await repositories.blobs(Remote(f"http://127.0.0.1:{port}/x"), "1" * 40, [LOCK], max_bytes=LIMIT)
        await closed.wait()


async def test_a_wrong_token_is_refused_and_stands_in_no_message(
    work: WorkTree, repositories: Repositories, url: str, tmp_path: Path
) -> None:
    sha = work.commit({LOCK: "x"})
    work.push()
    with pytest.raises(AccessDenied) as refused:
        await repositories.blobs(Remote(url, password="wr0ng"), sha, [LOCK], max_bytes=LIMIT)
    assert "wr0ng" not in str(refused.value)
    assert "wr0ng" not in repr(Remote(url, password="wr0ng"))


async def test_the_token_is_not_written_to_disk(
    work: WorkTree, repositories: Repositories, url: str, tmp_path: Path
) -> None:
    sha = work.commit({LOCK: "x"})
    work.push()
    await repositories.blobs(Remote(url, password="s3cret"), sha, [LOCK], max_bytes=LIMIT)
    for file in (tmp_path / "mirrors").rglob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes()


async def test_many_at_once_share_one_mirror(work: WorkTree, repositories: Repositories, url: str) -> None:
    shas = [work.commit({LOCK: str(number)}) for number in range(6)]
    work.push()
    remote = Remote(url, password="s3cret")
    read = await asyncio.gather(*(repositories.blobs(remote, sha, [LOCK], max_bytes=LIMIT) for sha in shas))
    assert [blobs[LOCK] for blobs in read] == [str(number).encode() for number in range(6)]


async def test_what_a_killed_git_left_behind_does_not_stop_the_next(
    work: WorkTree, repositories: Repositories, url: str, tmp_path: Path
) -> None:
    remote = Remote(url, password="s3cret")
    first, second = work.commit({LOCK: "1"}), work.commit({LOCK: "2"})
    work.push()
    await repositories.blobs(remote, first, [LOCK], max_bytes=LIMIT)
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    (mirror / "shallow.lock").touch()
    assert (await repositories.blobs(remote, second, [LOCK], max_bytes=LIMIT))[LOCK] == b"2"


async def test_a_damaged_mirror_is_made_anew(
    work: WorkTree, repositories: Repositories, url: str, tmp_path: Path
) -> None:
    remote = Remote(url, password="s3cret")
    sha = work.commit({LOCK: "1"})
    work.push()
    await repositories.blobs(remote, sha, [LOCK], max_bytes=LIMIT)
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    (mirror / "HEAD").write_text("")
    assert (await repositories.blobs(remote, sha, [LOCK], max_bytes=LIMIT))[LOCK] == b"1"


@pytest.mark.parametrize(
    "bad",
    [
        "file:///etc",
        "ext::sh -c 'touch /tmp/owned'",
        "ssh://host/x",
        "git@host:x",
        "/etc",
        "--upload-pack=x",
        "http://user:pw@host/x",
        "http://host/a b",
        "http:///x",
    ],
)
async def test_only_plain_http_urls_reach_git(repositories: Repositories, bad: str) -> None:
    with pytest.raises(BadRemote):
        await repositories.blobs(Remote(bad), "1" * 40, [LOCK], max_bytes=LIMIT)
    with pytest.raises(BadRemote):
        await repositories.resolve(Remote(bad), "main")


async def test_a_repository_that_is_not_kept_here_is_not_looked_for_on_disk(repositories: Repositories) -> None:
    with pytest.raises(BadRemote):
        await repositories.blobs(Remote("/git/../../etc"), "1" * 40, [LOCK], max_bytes=LIMIT)


@pytest.mark.parametrize("sha", ["", "main", "1" * 39, "--output=x", "1" * 40 + "\nHEAD", "A" * 40])
async def test_only_full_commit_ids_are_looked_up(repositories: Repositories, remote: Remote, sha: str) -> None:
    with pytest.raises(BadRemote):
        await repositories.blobs(remote, sha, [LOCK], max_bytes=LIMIT)


async def test_a_name_becomes_a_commit(work: WorkTree, repositories: Repositories, remote: Remote) -> None:
    first = work.commit({"a": "1"})
    work.git("tag", "-a", "v1", "-m", "annotated")
    work.git("checkout", "-q", "-b", "feature/x")
    second = work.commit({"a": "2"})
    work.git("tag", "feature/x")
    work.push("main", "refs/heads/feature/x", "refs/tags/v1", "refs/tags/feature/x")
    assert await repositories.resolve(remote, "") == Resolved(first, "main", "", "main")
    assert await repositories.resolve(remote, "v1") == Resolved(first, "", "v1", "main")
    assert await repositories.resolve(remote, "feature/x") == Resolved(second, "feature/x", "", "main")
    assert await repositories.resolve(remote, "refs/tags/feature/x") == Resolved(second, "", "feature/x", "main")
    assert await repositories.resolve(remote, second) == Resolved(second)
    assert await repositories.resolve(remote, "nothing") is None


@pytest.mark.parametrize(
    "ref", ["--upload-pack=x", "a..b", "a b", "*", "a\nb", "x" * 501, "@", "refs/heads/*", "a@{1}"]
)
async def test_names_that_are_none_do_not_reach_git(repositories: Repositories, remote: Remote, ref: str) -> None:
    with pytest.raises(BadRemote):
        await repositories.resolve(remote, ref)


async def test_an_empty_repository_has_no_default_commit(
    work: WorkTree, repositories: Repositories, remote: Remote
) -> None:
    assert await repositories.resolve(remote, "") is None
