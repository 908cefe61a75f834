"""Which files of the checkout count as changed, by the rule of `engine.changed`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import click
from msgspec import Struct

from kici.engine import changed
from kici.engine.changed import (
    MAX_FILES,
    WORKING_TREE,
    Answer,
    Ask,
    Changed,
    Deciding,
    Here,
    MergeBase,
    Trouble,
)
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockWorkflow

_HEADS, _REMOTES = "refs/heads/", "refs/remotes/"
_USUAL = ("main", "master", "trunk")
_LIMIT_S = 60


class NoSuchBase(click.UsageError):
    """`--base` names nothing."""


def with_changed(
    root: Path, event: Event, workflows: Iterable[LockWorkflow], *, given: tuple[str, ...] = (), base: str = ""
) -> Event:
    """The event with the files that were given, or that git says, if a workflow asks for them.

    Raises `NoSuchBase` if `base` names no commit.
    """
    if given:
        return changed.with_changed(event, Changed(given, "", "--changed"))
    if not base and not any(changed.wanted(workflow, event) for workflow in workflows):
        return event
    target = event.base_branch if event.type is EventType.PULL_REQUEST else ""
    return changed.with_changed(event, of_checkout(root, base=base, target=target))


def of_checkout(root: Path, *, base: str = "", target: str = "") -> Changed:
    """Compared with `base`, else with the branch `target`, else with the default branch."""
    here = _here(root, base, target)
    if here is None:
        return Changed(None, "", "there is no commit here")
    return settle(root, changed.of_working_tree(here))


def default_branch(root: Path) -> str:
    """As the remote calls it, else a usual name that is there, else the current branch; empty outside a repository."""
    return _refs(root).default or (_git(root, "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()


def settle(root: Path, deciding: Deciding) -> Changed:
    """Answer what `engine.changed` asks, and return what it decides."""
    answer: Answer = None
    try:
        while True:
            answer = _answer(root, deciding.send(answer))
    except StopIteration as decided:
        result: Changed = decided.value
        return result


def _answer(root: Path, ask: Ask) -> Answer:
    if isinstance(ask, MergeBase):
        return (_git(root, "merge-base", ask.one, ask.other) or "").strip() or None
    options = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--relative")
    found = _git(root, "diff", *options, ask.base, *([ask.head] if ask.head != WORKING_TREE else []), "--")
    if found is None:
        return Trouble.GONE
    names = set(found.split("\0"))
    if ask.head == WORKING_TREE:
        names |= set((_git(root, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0"))
    names.discard("")
    return tuple(sorted(names)) if len(names) <= MAX_FILES else Trouble.TOO_MANY


class _Refs(Struct, frozen=True):
    tips: dict[str, str]
    """Full name → commit."""
    default: str
    """Short name of the default branch; empty if nobody says."""

    def tip(self, branch: str, *, current: str) -> tuple[str, str]:
        """Commit and shown name of a branch, a remote's before our own, `origin` before other remotes."""
        remote = [name for name in self.tips if name.startswith(_REMOTES) and name.split("/", 3)[3:] == [branch]]
        own = [_HEADS + branch] if _HEADS + branch in self.tips and branch != current else []
        for name in [*sorted(remote, key=lambda one: (not one.startswith(f"{_REMOTES}origin/"), one)), *own]:
            return self.tips[name], name.removeprefix(_REMOTES).removeprefix(_HEADS)
        return "", ""


def _here(root: Path, base: str, target: str) -> Here | None:
    """None: there is no commit yet, or no repository."""
    log = _git(root, "log", "-1", "--format=%H%x00%P")
    if base:
        tip = (_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}") or "").strip()
        if not tip:
            raise NoSuchBase(f"--base: {base!r} is no branch, tag or commit here")
    if not log:
        return None
    head, parents = log.strip().split("\0")
    parent = parents.split(" ")[0]
    if base:
        return Here(head, parent, tip, base, demanded=True)
    refs = _refs(root)
    current = (_git(root, "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()
    tip, name = refs.tip(target or refs.default, current=current) if target or refs.default else ("", "")
    return Here(head, parent, tip, name)


def _refs(root: Path) -> _Refs:
    form = "%(refname)%00%(objectname)%00%(symref)"
    tips, default = {}, ""
    for line in (_git(root, "for-each-ref", f"--format={form}", _HEADS, _REMOTES) or "").splitlines():
        name, commit, symref = line.split("\0")
        if not symref:
            tips[name] = commit
        elif name == f"{_REMOTES}origin/HEAD":
            default = symref.removeprefix(f"{_REMOTES}origin/")
    known = {name.removeprefix(_HEADS) if name.startswith(_HEADS) else name.split("/", 3)[-1] for name in tips}
    return _Refs(tips, default or next((one for one in _USUAL if one in known), ""))


def _git(root: Path, *arguments: str) -> str | None:
    """None if git fails, or there is none."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *arguments],
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
