"""The fields of GitHub's payloads that events are made of."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from kici.forges.contract import MAX_CHANGED_FILES
from kici.forges.names import BranchName, FullRef, RepoName, Sha

MAX_COMMITS: Final = 2048
"""GitHub lists no more commits than this in a push."""


class Repository(Struct, frozen=True):
    full_name: RepoName
    clone_url: str = ""
    default_branch: BranchName = "main"


class User(Struct, frozen=True):
    login: str = ""


class Pusher(Struct, frozen=True):
    name: str = ""


class Commit(Struct, frozen=True):
    id: Sha
    message: str = ""
    added: list[str] = []
    modified: list[str] = []
    removed: list[str] = []


class Push(Struct, frozen=True):
    ref: FullRef
    before: Sha
    after: Sha
    repository: Repository
    created: bool = False
    deleted: bool = False
    forced: bool = False
    commits: list[Commit] = []
    head_commit: Commit | None = None
    pusher: Pusher = Pusher()
    sender: User | None = None

    def changed_files(self) -> tuple[str, ...] | None:
        """Union over the commits, which is never less than the difference; None where the list may be cut or is of
        other commits than `before..after`: a new branch, a forced push, no commits at all.
        """
        if self.created or self.forced or self.deleted or not 0 < len(self.commits) < MAX_COMMITS:
            return None
        files: set[str] = set()
        for commit in self.commits:
            files.update(commit.added, commit.modified, commit.removed)
            if len(files) > MAX_CHANGED_FILES:
                return None
        return tuple(sorted(files))


class Side(Struct, frozen=True):
    ref: BranchName
    sha: Sha
    repo: Repository | None = None


class PullRequest(Struct, frozen=True):
    head: Side
    base: Side
    title: str = ""


class PullRequestEvent(Struct, frozen=True):
    action: str
    number: int
    pull_request: PullRequest
    repository: Repository
    sender: User | None = None


class RepositoryDispatch(Struct, frozen=True):
    action: str
    repository: Repository
    branch: BranchName = ""
    client_payload: dict[str, Any] | None = None
    sender: User | None = None
