"""The forms of names that come from outside and later stand in arguments, paths and URLs."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

ZERO_SHA: Final = "0" * 40

Sha: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")]
RepoName: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+\Z", max_length=200)]
BranchName: TypeAlias = Annotated[str, Meta(pattern=r"\A(?!-)[^\x00-\x20\x7f~^:?*\[\\]*\Z", max_length=1000)]
FullRef: TypeAlias = Annotated[str, Meta(pattern=r"\Arefs/[^\x00-\x20\x7f~^:?*\[\\]+\Z", max_length=1000)]


def present(sha: str) -> str:
    """A forge writes "no commit" as forty zeros; an event as an empty string."""
    return "" if sha == ZERO_SHA else sha
