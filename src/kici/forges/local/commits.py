"""What git in a bare repository says about a push."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

ZERO = "0" * 40
MAX_FILES = 3000
"""The same bound as `contract.MAX_CHANGED_FILES`, which the hook does not import to start faster."""

_TIMEOUT_S = 30


class Facts(NamedTuple):
    commit: str
    message: str
    changed_files: list[str] | None


def facts(before: str, after: str, ref: str, default_branch: str) -> Facts:
    """Whatever git cannot say in time is left empty, or None: the push was accepted and its run must start."""
    if after == ZERO:
        return Facts("", "", None)
    commit = _git("rev-parse", "--verify", "--quiet", f"{after}^{{commit}}").strip()
    message = _git("log", "-1", "--format=%B", after).strip()
    return Facts(commit, message, _changed_files(before, after, ref, default_branch))


def default_branch() -> str:
    """What HEAD of the repository names, whether or not that branch exists yet."""
    return _git("symbolic-ref", "--short", "HEAD").strip() or "main"


def _changed_files(before: str, after: str, ref: str, default_branch: str) -> list[str] | None:
    if not ref.startswith("refs/heads/"):
        return None
    if before == ZERO:
        if ref == f"refs/heads/{default_branch}":
            return None
        # A new branch has changed what it has beyond the default branch.
        before = _git("merge-base", f"refs/heads/{default_branch}", after).strip()
        if not before:
            return None
    listed = _git_or_none("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", before, after, "--")
    if listed is None:
        return None
    files = [name for name in listed.split("\0") if name]
    return files if len(files) <= MAX_FILES else None


def _git(*arguments: str) -> str:
    return _git_or_none(*arguments) or ""


def _git_or_none(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
