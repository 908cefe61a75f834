from __future__ import annotations

from collections.abc import Sequence

import pytest

from kici.forges.git.objects import Blob
from kici.forges.git.remote import Remote
from kici.orchestrator.pipeline import lock_files
from kici.orchestrator.pipeline.lock_files import Corrupt, Found, LockFiles, Missing
from tests.support.locks import lock, workflow

HERE = Remote("/git/local/app")


class Repositories:
    """Answers the same to everything, and counts."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.asked: list[str] = []

    async def blobs(self, remote: Remote, sha: str, paths: Sequence[str], *, max_bytes: int) -> dict[str, Blob]:
        self.asked.append(f"{remote.url}@{sha}")
        return dict.fromkeys(paths, self.blob)


async def test_a_found_lock_file_is_kept_by_repository_and_commit() -> None:
    repositories = Repositories(lock(workflow()))
    files = LockFiles(repositories, limit=10)
    first = await files.at(HERE, "a")
    assert isinstance(first, Found)
    assert await files.at(HERE, "a") is first
    await files.at(HERE, "b")
    await files.at(Remote("https://forge/x"), "a")
    assert repositories.asked == ["/git/local/app@a", "/git/local/app@b", "https://forge/x@a"]


async def test_the_one_used_longest_ago_makes_room() -> None:
    repositories = Repositories(lock(workflow()))
    files = LockFiles(repositories, limit=2)
    for sha in ("a", "b", "a", "c", "a", "b"):
        await files.at(HERE, sha)
    assert [asked[-1] for asked in repositories.asked] == ["a", "b", "c", "b"]


async def test_large_ones_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    content = lock(workflow())
    monkeypatch.setattr(lock_files, "MAX_CACHED_BYTES", len(content) * 2)
    repositories = Repositories(content)
    files = LockFiles(repositories, limit=100)
    for sha in ("a", "b", "c", "b", "c", "a"):
        await files.at(HERE, sha)
    assert [asked[-1] for asked in repositories.asked] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("blob", "kind"), [(None, Missing), (b"{", Corrupt)])
async def test_what_is_missing_or_corrupt_is_looked_for_again(blob: Blob, kind: type) -> None:
    repositories = Repositories(blob)
    files = LockFiles(repositories, limit=10)
    assert isinstance(await files.at(HERE, "a"), kind)
    repositories.blob = lock(workflow())
    assert isinstance(await files.at(HERE, "a"), Found)
