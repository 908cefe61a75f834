"""What starts a workflow. A filter that is left out lets everything pass; `!` in front of a pattern excludes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct, field

from kici.nearest import nearest
from kici.sdk.problems import Location, call_site, refuse
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

NAMES = (
    *("push", "tag", "pr", "comment", "review", "review_comment", "release", "dispatch", "create", "delete", "status"),
    *("workflow_run", "fork", "star", "watch", "webhook", "kici_event", "workflow_complete", "job_complete"),
    *("generic_webhook", "schedule", "lifecycle", "manual"),
)
"""Of all triggers, here and in `forge_triggers` and `internal_triggers`."""

Words: TypeAlias = "str | list[str] | tuple[str, ...]"


W = TypeVar("W", bound=str)
Choice: TypeAlias = "W | Sequence[W]"
"""One word or several, of a closed set."""


class Trigger(Struct, frozen=True, kw_only=True):
    """Base of the triggers: make one by the function of its name."""

    location: Location = field(default_factory=call_site)


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
    inputs: type[Any] | None = None


class Manual(Trigger, frozen=True):
    inputs: type[Any] | None = None


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
    events: Choice[PrEvent] = DEFAULT_PR_EVENTS,
    target: Patterns = (),
    source: Patterns = (),
    paths: Words = (),
) -> Pr:
    """A pull request: `target` is the branch it wants to go to, `source` its head branch."""
    return Pr(
        events=checked_choice("pr(…)", "events", events, PR_EVENTS),
        target=checked_patterns("pr(…)", "target", target),
        source=checked_patterns("pr(…)", "source", source),
        paths=checked_globs("pr(…)", "paths", paths),
    )


def dispatch(*, types: Words = (), inputs: type[Any] | None = None) -> Dispatch:
    """An event that somebody sends through the forge's API (GitHub: repository_dispatch).

    `inputs` is a dataclass or `msgspec.Struct`: its fields are what the event may carry, `ctx.inputs_as(…)` gives it.
    """
    return Dispatch(checked_words("dispatch(…)", "types", types), checked_inputs("dispatch(…)", inputs))


def manual(*, inputs: type[Any] | None = None) -> Manual:
    """`kici runs start WORKFLOW`. A workflow without it cannot be started by hand. `inputs` as of `dispatch`."""
    return Manual(checked_inputs("manual(…)", inputs))


def checked_choice(subject: str, option: str, value: object, allowed: Iterable[str]) -> tuple[str, ...]:
    """One word or several of a closed set; others are refused with the nearest one."""
    known = tuple(allowed)
    return tuple(one for one in checked_words(subject, option, value) if one_of(subject, option, one, known))


def checked_inputs(subject: str, inputs: object) -> type[Any] | None:
    """The class itself; what its fields may be is checked when it is compiled."""
    if inputs is None or (isinstance(inputs, type) and hasattr(inputs, "__annotations__")):
        return inputs
    refuse(subject, f"inputs is {inputs!r}: write a dataclass, or a class of msgspec.Struct, itself: inputs=Inputs")
    return None


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
            near = nearest(trigger, NAMES) if isinstance(trigger, str) else ""
            refuse(subject, f"on: {trigger!r} is no trigger{near}: write push(…), pr(…), tag(…) or manual()")
    return tuple(found)
