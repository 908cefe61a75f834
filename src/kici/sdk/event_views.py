"""Events as authors narrow them: `ctx.event_as(CommentEvent).body`. Each has what an event of its kind always has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from msgspec import Struct

from kici.sdk.errors import OtherEvent
from kici.sdk.forge_triggers import (
    CommentAction,
    Conclusion,
    RefType,
    ReleaseAction,
    ReviewAction,
    ReviewState,
    StarAction,
    StatusState,
    WatchAction,
    WorkflowRunAction,
)
from kici.sdk.internal_triggers import JobStatus, WorkflowStatus
from kici.sdk.triggers import PrEvent

EventKind: TypeAlias = Literal[
    "push",
    "tag",
    "pull_request",
    "comment",
    "review",
    "review_comment",
    "release",
    "dispatch",
    "create",
    "delete",
    "status",
    "workflow_run",
    "fork",
    "star",
    "watch",
    "webhook",
    "kici_event",
    "workflow_complete",
    "job_complete",
    "generic_webhook",
    "schedule",
    "manual",
]
"""What `ctx.event.type` can be."""


class EventView(Struct, frozen=True):
    """Base of the typed events."""

    kind: ClassVar[EventKind]
    reads: ClassVar[Mapping[str, str]] = {}
    """Own name of a field → its name in `ctx.event`."""


class PushEvent(EventView, frozen=True):
    kind = "push"
    branch: str
    sha: str
    before: str
    """Empty if the branch is new."""
    message: str


class TagEvent(EventView, frozen=True):
    kind = "tag"
    tag: str
    sha: str


class PullRequestEvent(EventView, frozen=True):
    kind = "pull_request"
    reads = {"number": "pr_number", "head_branch": "branch", "title": "message"}
    action: PrEvent
    number: int
    head_branch: str
    base_branch: str
    sha: str
    is_fork: bool
    title: str


class CommentEvent(EventView, frozen=True):
    kind = "comment"
    reads = {"number": "issue_number"}
    action: CommentAction
    number: int
    """Of the issue or pull request."""
    pr_number: int
    """0 on an issue."""
    body: str
    actor: str


class ReviewEvent(EventView, frozen=True):
    kind = "review"
    action: ReviewAction
    state: ReviewState
    pr_number: int
    body: str
    actor: str


class ReviewCommentEvent(EventView, frozen=True):
    """A comment on a line of a pull request."""

    kind = "review_comment"
    action: CommentAction
    pr_number: int
    sha: str
    """Head of the pull request."""
    body: str
    actor: str


class ReleaseEvent(EventView, frozen=True):
    kind = "release"
    reads = {"tag": "event_name"}
    action: ReleaseAction
    tag: str
    body: str


class RefEvent(EventView, frozen=True):
    """Of a create; `DeletedRefEvent` is its opposite."""

    kind = "create"
    reads = {"name": "event_name"}
    ref_type: RefType
    name: str


class DeletedRefEvent(EventView, frozen=True):
    kind = "delete"
    reads = {"name": "event_name"}
    ref_type: RefType
    name: str


class StatusEvent(EventView, frozen=True):
    kind = "status"
    reads = {"context": "event_name"}
    context: str
    state: StatusState
    commit: str


class DispatchEvent(EventView, frozen=True):
    kind = "dispatch"
    reads = {"name": "event_name"}
    name: str
    """Its type."""
    inputs: dict[str, str]
    """As text; `ctx.inputs_as` has the types."""
    actor: str


class WorkflowRunEvent(EventView, frozen=True):
    """A run of GitHub Actions."""

    kind = "workflow_run"
    reads = {"workflow": "event_name", "conclusion": "state"}
    action: WorkflowRunAction
    workflow: str
    conclusion: Conclusion | Literal[""]
    """Empty until it has ended."""
    commit: str
    """That it is about, which is not the one that is checked out."""


class ForkEvent(EventView, frozen=True):
    kind = "fork"
    repo: str
    """The one that was forked."""
    actor: str


class StarEvent(EventView, frozen=True):
    kind = "star"
    action: StarAction
    repo: str
    actor: str


class WatchEvent(EventView, frozen=True):
    kind = "watch"
    action: WatchAction
    repo: str
    actor: str


class WebhookEvent(EventView, frozen=True):
    """Whatever a source delivers."""

    kind = "webhook"
    reads = {"name": "forge_event"}
    name: str
    """The sender's own."""
    action: str
    source_repo: str
    """Empty if it is about none."""
    actor: str
    payload: Any


class ManualEvent(EventView, frozen=True):
    kind = "manual"
    workflow: str
    inputs: dict[str, str]
    """As text; `ctx.inputs_as` has the types."""
    actor: str


class KiciEvent(EventView, frozen=True):
    kind = "kici_event"
    reads = {"name": "event_name"}
    name: str
    payload: Any
    source_repo: str
    delivery_id: str


class WorkflowCompleteEvent(EventView, frozen=True):
    kind = "workflow_complete"
    reads = {"status": "state"}
    workflow: str
    status: WorkflowStatus
    commit: str
    """Of the run that ended; what is checked out is the head of the default branch."""
    source_repo: str


class JobCompleteEvent(EventView, frozen=True):
    kind = "job_complete"
    reads = {"status": "state"}
    workflow: str
    job: str
    """Without the matrix suffix; `ctx.payload["jobName"]` has it."""
    status: JobStatus
    commit: str
    """Of the run that it belongs to; what is checked out is the head of the default branch."""
    source_repo: str


class GenericWebhookEvent(EventView, frozen=True):
    kind = "generic_webhook"
    reads = {"name": "event_name"}
    source: str
    name: str
    payload: Any


class ScheduleEvent(EventView, frozen=True):
    kind = "schedule"
    reads = {"cron": "event_name"}
    cron: str
    tz: str


V = TypeVar("V", bound=EventView)


def view(event: Any, of: type[V]) -> V:
    """Raises `OtherEvent` if the event is of another kind."""
    if event.type != of.kind:
        raise OtherEvent(f"this event is a {event.type}, not a {of.kind}: look at ctx.event.type first")
    return of(**{name: getattr(event, of.reads.get(name, name)) for name in of.__struct_fields__})
