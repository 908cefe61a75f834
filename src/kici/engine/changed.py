"""Which files count as changed, compared with which commit. The one place that decides it: orchestrator, `kici preview`
and `kici run local` ask git what it wants to know, and nobody ever believes a webhook's list of files.

- A push to a branch: since the commit of the workflow's last successful run on this branch, whether or not that is
  still an ancestor: its tree has been checked, so what differs from it has not. After a failed or cancelled run the
  files of that push therefore count again. Each workflow has its own base.
- A workflow that has never succeeded on the branch: since the branch left the default branch. On the default branch
  itself: what the push brought, if no run of it has failed there yet; else it is not known what has been checked.
- A pull request: since it left its base branch, as that stands now; if that is gone, as the event says.
- A checkout: since it left the default branch, as the nearest remote knows it, or since the commit before if there is
  nothing beyond that; uncommitted files count.
- Everything else, and whatever git cannot answer: unknown, and then all files count as changed, with a warning.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockRule, LockWorkflow

MAX_FILES = 10_000
"""More count as unknown."""
WORKING_TREE = ""


class MergeBase(Struct, frozen=True):
    """Asks for the commit at which two histories went apart; None: there is none, or one of them is not there."""

    one: str
    other: str


class Compare(Struct, frozen=True):
    """Asks for the files that differ between two trees, both names of a renamed one, or for why that is not known."""

    base: str
    head: str
    """`WORKING_TREE` = the files as they are, with what git would add."""


class Trouble(StrEnum):
    GONE = "it is not in the repository any more"
    TOO_MANY = f"more than {MAX_FILES:,} files differ"


Ask: TypeAlias = MergeBase | Compare
Answer: TypeAlias = str | tuple[str, ...] | Trouble | None
Deciding: TypeAlias = "Generator[Ask, Answer, Changed]"


class Changed(Struct, frozen=True):
    files: tuple[str, ...] | None
    """None = unknown."""
    base: str = ""
    """Commit that was compared with; empty if none was."""
    since: str = ""
    """What that commit is, or why nothing is known."""


class Known(Struct, frozen=True):
    """Facts beside the event's own. Empty = there is no such thing."""

    last_success: str = ""
    """Commit of the workflow's last successful run on the branch."""
    has_run: bool = False
    """It has been run on the branch, however that ended."""
    default_tip: str = ""
    """Of the default branch, now. Wanted only for a push to another one."""
    base_tip: str = ""
    """Of the branch that a pull request wants to go to, now."""


class Here(Struct, frozen=True):
    """What a checkout is."""

    head: str
    """Its commit."""
    parent: str = ""
    tip: str = ""
    """Of the branch that its own is compared with."""
    tip_name: str = ""
    demanded: bool = False
    """The author says that it is to be this one."""


class Candidate(Struct, frozen=True):
    """A commit to compare with."""

    sha: str
    since: str
    parted: bool = False
    """Not with the commit itself, but with where its history and the head's went apart."""
    not_head: bool = False
    """Useless if that is the head itself and nothing differs from it."""


def wanted(workflow: LockWorkflow, event: Event) -> bool:
    """Whether anything of this workflow asks which files changed, so that it is worth finding out."""
    if event.type not in (EventType.PUSH, EventType.PULL_REQUEST):
        return False
    rules = [*workflow.rules]
    for job in workflow.jobs:
        rules += job.rules
        for step in job.steps:
            rules += step.rules
    return any(getattr(trigger, "paths", ()) for trigger in workflow.triggers) or any(map(_is_static, rules))


def of_event(event: Event, known: Known) -> Deciding:
    """For a push or a pull request."""
    if event.type is EventType.PULL_REQUEST:
        return first_of(_of_pull_request(event, known), event.sha)
    if event.type is EventType.PUSH:
        return first_of(_of_push(event, known), event.sha, _nothing_checked(event, known))
    return first_of((), event.sha, f"a {event.type} has no commit to compare with")


def of_working_tree(here: Here) -> Deciding:
    """For a checkout: what a push of all that it holds would bring."""
    return first_of(_of_working_tree(here), here.head, "there is no earlier commit", tree=WORKING_TREE)


def first_of(candidates: Iterable[Candidate], head: str, otherwise: str = "", *, tree: str | None = None) -> Deciding:
    """Compare with the first candidate that git can answer for; `tree` instead of the head's files."""
    whys = []
    for candidate in candidates:
        base: Answer = candidate.sha
        if candidate.parted:
            base = yield MergeBase(candidate.sha, head)
            if base is None:
                whys.append(f"{candidate.since}: its commit {candidate.sha[:7]} and this history have none in common")
                continue
        assert isinstance(base, str)
        files = yield Compare(base, head if tree is None else tree)
        if candidate.not_head and base == head and files == ():
            continue
        if isinstance(files, tuple):
            return Changed(files, base, candidate.since)
        if files is Trouble.TOO_MANY:
            return Changed(None, base, f"{candidate.since}: {Trouble.TOO_MANY}")
        whys.append(f"{candidate.since}: commit {base[:7]}: {Trouble.GONE}")
    return Changed(None, "", "; ".join([*whys, *([otherwise] if otherwise else [])]) or "there is nothing to compare")


def with_changed(event: Event, changed: Changed) -> Event:
    """The event as one workflow sees it."""
    return replace(event, changed_files=changed.files, changed_base=changed.base, changed_since=changed.since)


def told(event: Event) -> str:
    """One sentence about the base that was used; empty if nobody has asked for it."""
    if not event.changed_since:
        return ""
    if event.changed_files is None:
        return f"it is not known which files changed ({event.changed_since}), so all count as changed"
    count = len(event.changed_files)
    with_base = f" {event.changed_base[:7]}" if event.changed_base else ""
    return f"{count} {'file' if count == 1 else 'files'} changed since{with_base} ({event.changed_since})"


def _of_push(event: Event, known: Known) -> Iterator[Candidate]:
    if known.last_success:
        yield Candidate(known.last_success, f"the last successful run on {event.branch}")
    if event.branch != event.default_branch:
        if known.default_tip:
            yield Candidate(known.default_tip, f"where {event.branch} left {event.default_branch}", parted=True)
    elif event.before and not known.has_run:
        yield Candidate(event.before, f"what {event.branch} was before the push", parted=True)


def _nothing_checked(event: Event, known: Known) -> str:
    if event.branch != event.default_branch and not known.default_tip:
        return f"there is no branch {event.default_branch} to compare with"
    if known.has_run:
        return f"no run on {event.branch} has succeeded yet"
    return f"{event.branch} is new"


def _of_pull_request(event: Event, known: Known) -> Iterator[Candidate]:
    left = f"where it left {event.base_branch}"
    # Merged already, its base branch holds it whole: then what the event calls the base tells more.
    if known.base_tip:
        yield Candidate(known.base_tip, left, parted=True, not_head=True)
    if event.before:
        yield Candidate(event.before, left, parted=True)


def _of_working_tree(here: Here) -> Iterator[Candidate]:
    if here.tip:
        yield Candidate(here.tip, f"where it left {here.tip_name}", parted=True, not_head=not here.demanded)
    if here.parent and not here.demanded:
        yield Candidate(here.parent, "the commit before", parted=False)


def _is_static(rule: LockRule) -> bool:
    return rule.changed is not None
