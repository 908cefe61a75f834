"""The normalized event: the only form in which the rules and the workflows see what happened at a forge."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct


class EventType(StrEnum):
    PUSH = "push"
    TAG = "tag"
    PULL_REQUEST = "pull_request"
    DISPATCH = "dispatch"
    GENERIC_WEBHOOK = "generic_webhook"
    MANUAL = "manual"


class Trust(StrEnum):
    """Until trust levels exist, every pull request is unknown and everything else trusted."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"


class Event(Struct, frozen=True, rename="camel"):
    """Empty strings mean that the event has no such thing; refs carry no `refs/heads/`."""

    type: EventType
    action: str = ""
    branch: str = ""
    """Pushed branch; of a pull request its head branch."""
    tag: str = ""
    base_branch: str = ""
    """Of a pull request only: the branch it wants to go to."""
    sha: str = ""
    """40 hex digits: the commit that a job checks out."""
    before: str = ""
    """40 hex digits: the commit that the branch pointed to before; of a pull request the base commit. Empty if new."""
    repo: str = ""
    """`owner/name`"""
    default_branch: str = "main"
    pr_number: int = 0
    is_fork: bool = False
    actor: str = ""
    message: str = ""
    """Head commit's message; of a pull request its title."""
    deleted: bool = False
    """The branch or tag was deleted: nothing can run."""
    changed_files: tuple[str, ...] | None = None
    """None = unknown: path filters then match, with a warning."""
    changed_base: str = ""
    """Commit that they were compared with, by `engine.changed`; empty if none was."""
    changed_since: str = ""
    """What that commit is, in words, or why nothing is known; empty if nobody has asked."""
    source: str = ""
    """Of a generic webhook: the source's name."""
    event_name: str = ""
    """Of a generic webhook: its own event type, `default` if it says none. Of a dispatch: its type."""
    workflow: str = ""
    """Of a manual start: the workflow's name."""
    inputs: dict[str, str] = {}
    chain_depth: int = 0
    """How many events of workflows (`ctx.emit`) led to this one; 0 = it came from outside."""
    payload: Any = None
    """Body of the webhook, decoded."""

    @property
    def ref(self) -> str:
        """Full git ref, or empty."""
        if self.tag:
            return f"refs/tags/{self.tag}"
        if self.type is EventType.PULL_REQUEST and self.pr_number:
            return f"refs/pull/{self.pr_number}/head"
        return f"refs/heads/{self.branch}" if self.branch else ""

    @property
    def trust(self) -> Trust:
        return Trust.UNKNOWN if self.type is EventType.PULL_REQUEST else Trust.TRUSTED
