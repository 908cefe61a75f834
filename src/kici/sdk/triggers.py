"""What starts a workflow. A filter that is left out lets everything pass; `!` in front of a pattern excludes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from kici.sdk.problems import refuse
from kici.sdk.values import Pattern, Patterns, checked_globs, checked_patterns, checked_words, one_of

PrEvent: TypeAlias = Literal[
    "opened",
    "synchronize",
    "reopened",
    "closed",
    "assigned",
    "unassigned",
    "labeled",
    "unlabeled",
    "edited",
    "converted_to_draft",
    "ready_for_review",
    "locked",
    "unlocked",
    "review_requested",
    "review_request_removed",
    "auto_merge_enabled",
    "auto_merge_disabled",
]
PR_EVENTS: tuple[PrEvent, ...] = PrEvent.__args__  # type: ignore[attr-defined]
DEFAULT_PR_EVENTS: tuple[PrEvent, ...] = ("opened", "synchronize", "reopened", "closed")

Words: TypeAlias = "str | list[str] | tuple[str, ...]"


class Trigger(Struct, frozen=True):
    """Base of the triggers: make one by the function of its name."""


class Push(Trigger, frozen=True):
    branches: tuple[Pattern, ...] | None
    """None = branches do not start it, only `tags` do."""
    tags: tuple[Pattern, ...] | None
    """None = tags do not start it."""
    paths: tuple[str, ...]


class Tag(Trigger, frozen=True):
    patterns: tuple[Pattern, ...]


class Pr(Trigger, frozen=True):
    events: tuple[str, ...]
    target: tuple[Pattern, ...]
    source: tuple[Pattern, ...]
    paths: tuple[str, ...]


class Dispatch(Trigger, frozen=True):
    types: tuple[str, ...]


class GenericWebhook(Trigger, frozen=True):
    source: str
    events: tuple[str, ...]


class Manual(Trigger, frozen=True):
    pass


def push(*, branches: Patterns = (), tags: Patterns = (), paths: Words = ()) -> Push:
    """A push to a branch, or with `tags` of a tag. Tags alone do not let branches pass; paths are for branches."""
    if tags and paths and not branches:
        refuse("push(…)", "paths without branches: a tag has no changed files; drop paths, or name the branches")
    return Push(
        branches=None if tags and not branches else checked_patterns("push(…)", "branches", branches),
        tags=checked_patterns("push(…)", "tags", tags) if tags else None,
        paths=checked_globs("push(…)", "paths", paths),
    )


def tag(*patterns: Pattern) -> Tag:
    """A pushed tag whose name matches: `tag("v*")`."""
    return Tag(checked_patterns("tag(…)", "pattern", patterns))


def pr(
    *,
    events: PrEvent | list[PrEvent] | tuple[PrEvent, ...] = DEFAULT_PR_EVENTS,
    target: Patterns = (),
    source: Patterns = (),
    paths: Words = (),
) -> Pr:
    """A pull request: `target` is the branch it wants to go to, `source` its head branch."""
    wanted = checked_words("pr(…)", "events", events)
    return Pr(
        events=tuple(event for event in wanted if one_of("pr(…)", "events", event, PR_EVENTS)),
        target=checked_patterns("pr(…)", "target", target),
        source=checked_patterns("pr(…)", "source", source),
        paths=checked_globs("pr(…)", "paths", paths),
    )


def dispatch(*, types: Words = ()) -> Dispatch:
    """An event that somebody sends through the forge's API (GitHub: repository_dispatch)."""
    return Dispatch(checked_words("dispatch(…)", "types", types))


def generic_webhook(source: str, *, events: Words = ()) -> GenericWebhook:
    """A delivery to a generic source of the orchestrator, by the name that `kici-admin source add` gave it."""
    if not isinstance(source, str) or not source.strip():
        refuse("generic_webhook(…)", f"source is {source!r}: write the name of the orchestrator's source")
        source = "?"
    return GenericWebhook(source, checked_words("generic_webhook(…)", "events", events))


def manual() -> Manual:
    """`kici runs start WORKFLOW`. A workflow without it cannot be started by hand."""
    return Manual()


def checked_triggers(subject: str, value: object) -> tuple[Trigger, ...]:
    """One trigger or several."""
    several: Iterable[object] = value if isinstance(value, (list, tuple)) else (value,)
    found = []
    for trigger in several:
        if isinstance(trigger, Trigger):
            found.append(trigger)
        elif callable(trigger):
            name = getattr(trigger, "__name__", "push")
            refuse(subject, f"on: {name} is a function, call it: {name}(…)")
        else:
            refuse(subject, f"on: {trigger!r} is no trigger: write push(…), pr(…), tag(…) or manual()")
    return tuple(found)
