"""The normalized event: the only form in which the rules and the workflows see what happened at a forge."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct


class EventType(StrEnum):
    PUSH = "push"
    TAG = "tag"
    PULL_REQUEST = "pull_request"
    COMMENT = "comment"
    REVIEW = "review"
    REVIEW_COMMENT = "review_comment"
    RELEASE = "release"
    DISPATCH = "dispatch"
    CREATE = "create"
    DELETE = "delete"
    STATUS = "status"
    WORKFLOW_RUN = "workflow_run"
    FORK = "fork"
    STAR = "star"
    WATCH = "watch"
    WEBHOOK = "webhook"
    """Whatever else a source delivers."""
    KICI_EVENT = "kici_event"
    WORKFLOW_COMPLETE = "workflow_complete"
    JOB_COMPLETE = "job_complete"
    GENERIC_WEBHOOK = "generic_webhook"
    SCHEDULE = "schedule"
    MANUAL = "manual"


OF_PULL_REQUESTS = frozenset({EventType.PULL_REQUEST, EventType.COMMENT, EventType.REVIEW, EventType.REVIEW_COMMENT})
"""Those that are about a pull request if they have a `pr_number`."""
OF_DEFAULT_BRANCH = frozenset(
    {
        *(EventType.COMMENT, EventType.RELEASE, EventType.CREATE, EventType.DELETE, EventType.STATUS),
        *(EventType.WORKFLOW_RUN, EventType.FORK, EventType.STAR, EventType.WATCH),
    }
)
"""Those whose workflows are the ones at the head of the default branch, if they are about no pull request."""


class Trust(StrEnum):
    """Until trust levels exist, every pull request, and what is said of one, is unknown; everything else is trusted."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"


class Event(Struct, frozen=True, rename="camel"):
    """Empty strings mean that the event has no such thing; refs carry no `refs/heads/`."""

    type: EventType
    action: str = ""
    branch: str = ""
    """Pushed branch; of a pull request its head branch; of an event without a branch the default branch."""
    tag: str = ""
    """Pushed or created tag; of a release its tag."""
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
    """What its sender calls it. Of a generic webhook its own event type, `default` if it says none; of a dispatch its
    type; of a `kici_event` its name; of a create or delete the branch or tag; of a status its context; of a
    workflow_run that workflow's name; of a schedule its cron expression."""
    workflow: str = ""
    """Name of the workflow that a manual start or a schedule is for, or that a `workflow_complete` or `job_complete` is
    about."""
    inputs: dict[str, str] = {}
    chain_depth: int = 0
    """How many events of workflows (`ctx.emit`) led to this one; 0 = it came from outside."""
    payload: Any = None
    """Body of the webhook, decoded; of a `kici_event` what was emitted."""
    issue_number: int = 0
    """Of a comment: the issue or pull request that it is on."""
    body: str = ""
    """Text of a comment or review."""
    state: str = ""
    """In lower case. Of a review or a status its state, of a workflow_run its conclusion, of a `workflow_complete` or
    `job_complete` how it ended."""
    ref_type: str = ""
    """Of a create or delete: `branch` or `tag`."""
    commit: str = ""
    """Of a status or a workflow_run: the commit that it is about, which is not the one that is checked out."""
    forge_event: str = ""
    """The sender's own name of the event, as `webhook(…)` asks for it: `pull_request_review`."""
    source_repo: str = ""
    """Of what comes from a workflow (`kici_event`, `workflow_complete`, `job_complete`): the repository of that."""
    job: str = ""
    """Of a `job_complete`: the job that ended."""
    tz: str = ""
    """Of a schedule."""
    delivery_id: str = ""
    """Equal when the same event is delivered or processed again: a workflow that must not act twice remembers it."""

    @property
    def of_pull_request(self) -> bool:
        return bool(self.pr_number) and self.type in OF_PULL_REQUESTS

    @property
    def ref(self) -> str:
        """Full git ref, or empty."""
        if self.tag:
            return f"refs/tags/{self.tag}"
        if self.of_pull_request:
            return f"refs/pull/{self.pr_number}/head"
        return f"refs/heads/{self.branch}" if self.branch else ""

    @property
    def trust(self) -> Trust:
        unknown = self.type is EventType.PULL_REQUEST or self.of_pull_request
        return Trust.UNKNOWN if unknown else Trust.TRUSTED
