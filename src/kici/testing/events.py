"""Events as tests need them: everything that a test does not say has a harmless value.

A kind that has no maker of its own is made by `event`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from kici.engine.events import Event, EventType
from kici.errors import KiciError
from kici.nearest import nearest

if TYPE_CHECKING:
    from typing import Unpack

SHA = "1" * 40
REPO = "acme/app"


class Facts(TypedDict, total=False):
    """What every event can have."""

    sha: str
    before: str
    """The commit before; of a pull request the base commit."""
    repo: str
    default_branch: str
    actor: str
    message: str
    """Head commit's message; of a pull request its title."""
    payload: Any
    """Body of the webhook."""


def push_event(*, branch: str = "main", changed: Sequence[str] | None = None, **facts: Unpack[Facts]) -> Event:
    """A push to a branch. `changed` None = nobody knows which files changed."""
    return event("push", branch=branch, changed=changed, **facts)


def tag_event(tag: str = "v1.0.0", **facts: Unpack[Facts]) -> Event:
    return event("tag", tag=tag, **facts)


def pr_event(
    *,
    action: str = "opened",
    branch: str = "feature",
    target: str = "main",
    number: int = 1,
    fork: bool = False,
    changed: Sequence[str] | None = None,
    **facts: Unpack[Facts],
) -> Event:
    """A pull request from `branch` to `target`."""
    return event(
        "pull_request",
        action=action,
        branch=branch,
        base_branch=target,
        pr_number=number,
        is_fork=fork,
        changed=changed,
        **facts,
    )


def dispatch_event(
    type: str = "", *, branch: str = "main", inputs: Mapping[str, str] | None = None, **facts: Unpack[Facts]
) -> Event:
    """A dispatch of a type, as `repository_dispatch` of GitHub."""
    return event("dispatch", event_name=type, branch=branch, inputs=dict(inputs or {}), **facts)


def manual_event(
    *, branch: str = "main", inputs: Mapping[str, str] | None = None, workflow: str = "", **facts: Unpack[Facts]
) -> Event:
    """A start by hand; `plan` fills in the workflow that it plans."""
    return event("manual", branch=branch, inputs=dict(inputs or {}), workflow=workflow, **facts)


def webhook_event(source: str, type: str = "default", **facts: Unpack[Facts]) -> Event:
    """What a generic source sent."""
    return event("generic_webhook", source=source, event_name=type, **facts)


def event(kind: str, /, *, changed: Sequence[str] | None = None, **facts: Any) -> Event:
    """An event of any kind; `facts` are fields of `kici.engine.events.Event`. Raises `KiciError` for unknown ones."""
    known = [one.value for one in EventType]
    if kind not in known:
        raise KiciError(f"there is no event {kind!r}{nearest(kind, known)}; there are {', '.join(known)}")
    for name in facts:
        if name not in Event.__struct_fields__:
            raise KiciError(f"an event has no {name!r}{nearest(name, Event.__struct_fields__)}")
    files = None if changed is None else tuple(changed)
    return Event(
        **{"sha": SHA, "repo": REPO, "actor": "tester", "changed_files": files, **facts, "type": EventType(kind)}
    )
