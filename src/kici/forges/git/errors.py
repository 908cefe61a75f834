"""What git could not do, told apart by what to do about it."""

from __future__ import annotations

import re

from kici.errors import KiciError


class GitError(KiciError):
    code = "git_error"
    status = 502


class GitFailed(GitError):
    """git ended in a way that says nothing about the forge: a damaged mirror, a full disk."""

    code = "git_failed"


class GitUnavailable(GitError):
    """The forge does not answer, or not now: the same call may work later. Never the same as "not there"."""

    code = "git_unavailable"
    status = 503


class AccessDenied(GitError):
    """The forge answers and refuses, or hides the repository."""

    code = "git_access_denied"
    status = 502


class CommitMissing(GitError):
    """The repository is there and does not have the commit (yet, or any more)."""

    code = "commit_missing"
    status = 404


class BadRemote(GitError):
    """A URL or a ref that is never handed to git."""

    code = "git_remote_invalid"
    status = 400


_MISSING = re.compile(r"not our ref|couldn't find remote ref|unadvertised object", re.IGNORECASE)
_DENIED = re.compile(
    r"authentication failed|could not read (?:username|password)|terminal prompts disabled|returned error: 40[134]"
    r"|repository '.*' not found",
    re.IGNORECASE,
)
_AWAY = re.compile(
    r"unable to access|could not resolve|failed to connect|connection|timed out|too slow|early eof|hung up"
    r"|rpc failed|returned error: (?:429|5\d\d)|could not fetch|expected flush|unexpected disconnect",
    re.IGNORECASE,
)


def classify(what: str, stderr: bytes) -> GitError:
    """The error that a failed git command stands for, with the last of what git said."""
    text = stderr.decode(errors="replace")
    said = " / ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())[:500] or "nothing"
    if _MISSING.search(text):
        return CommitMissing(f"{what}: the repository does not have that commit (git said: {said})")
    if _DENIED.search(text):
        return AccessDenied(f"{what}: the forge refuses; check the source's clone URL and token (git said: {said})")
    if _AWAY.search(text):
        return GitUnavailable(f"{what}: the forge does not answer as it should (git said: {said})")
    return GitFailed(f"{what}: git failed (it said: {said})")
