"""What the lock file says of triggers. Part of `engine.lockfile`, which everybody imports them from.

An empty list of a filter lets everything pass.
"""

from __future__ import annotations

from msgspec import Struct, field


class Regex(Struct, frozen=True, forbid_unknown_fields=True):
    regex: str
    """RE2 syntax."""


Pattern = str | Regex


class Node(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Base of what stands in the lock file: strict when read, without defaults when written."""


class GitTrigger(Node, frozen=True, tag_field="type"):
    """Base of the triggers that a repository's own events fire."""


class PushTrigger(GitTrigger, frozen=True, tag="push"):
    branches: tuple[Pattern, ...] = ()
    paths: tuple[str, ...] = ()


class TagTrigger(GitTrigger, frozen=True, tag="tag"):
    patterns: tuple[Pattern, ...] = ()


class PrTrigger(GitTrigger, frozen=True, tag="pr"):
    events: tuple[str, ...] = ("opened", "synchronize", "reopened", "closed")
    target: tuple[Pattern, ...] = ()
    source: tuple[Pattern, ...] = ()
    paths: tuple[str, ...] = ()


class LockInput(Node, frozen=True):
    """One typed input: what it may be, and what it is when nobody gives it."""

    type: str
    """`string`, `integer`, `number` or `boolean`."""
    required: bool = False
    default: str | int | float | bool | None = None
    nullable: bool = False
    """It may be null, which is given as empty text."""
    choices: tuple[str | int | float | bool, ...] = ()
    """Nothing else may be given; empty = anything of the type."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    """RE2, searched for."""
    description: str | None = None


Inputs = dict[str, LockInput]


class DispatchTrigger(GitTrigger, frozen=True, tag="dispatch"):
    types: tuple[str, ...] = ()
    inputs: Inputs | None = None
    """Absent = whatever the event carries, as text."""


class ManualTrigger(GitTrigger, frozen=True, tag="manual"):
    """`kici runs start`. A workflow without it cannot be started by hand."""

    inputs: Inputs | None = None
    """Absent = whatever is given, as text."""


class CommentTrigger(GitTrigger, frozen=True, tag="comment"):
    actions: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    """`issue`, `pr`"""
    body_match: tuple[Pattern, ...] = ()
    """See `engine.patterns.text_matches`."""


class ReviewTrigger(GitTrigger, frozen=True, tag="review"):
    actions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


class ReviewCommentTrigger(GitTrigger, frozen=True, tag="review_comment"):
    actions: tuple[str, ...] = ()


class ReleaseTrigger(GitTrigger, frozen=True, tag="release"):
    actions: tuple[str, ...] = ()


class CreateTrigger(GitTrigger, frozen=True, tag="create"):
    ref_types: tuple[str, ...] = ()
    """`branch`, `tag`"""
    patterns: tuple[Pattern, ...] = ()


class DeleteTrigger(GitTrigger, frozen=True, tag="delete"):
    ref_types: tuple[str, ...] = ()
    patterns: tuple[Pattern, ...] = ()


class StatusTrigger(GitTrigger, frozen=True, tag="status"):
    contexts: tuple[Pattern, ...] = ()
    states: tuple[str, ...] = ()


class WorkflowRunTrigger(GitTrigger, frozen=True, tag="workflow_run"):
    actions: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    conclusions: tuple[str, ...] = ()


class ForkTrigger(GitTrigger, frozen=True, tag="fork"):
    """Somebody forked the repository."""


class StarTrigger(GitTrigger, frozen=True, tag="star"):
    actions: tuple[str, ...] = ()


class WatchTrigger(GitTrigger, frozen=True, tag="watch"):
    actions: tuple[str, ...] = ()


class RegisteredTrigger(Node, frozen=True, tag_field="type"):
    """Base of the triggers that exist once the lock file has reached the default branch."""


Scalar = str | int | float | bool | None
Expected = Scalar | Regex | tuple[Scalar | Regex, ...]
"""Of a list any one; a `Regex` is searched for in a text."""


class WebhookTrigger(RegisteredTrigger, frozen=True, tag="webhook"):
    events: tuple[str, ...]
    """The sender's own names."""
    actions: tuple[str, ...] = ()


class GenericWebhookTrigger(RegisteredTrigger, frozen=True, tag="generic_webhook"):
    source: str
    """Name of a generic source of the orchestrator."""
    events: tuple[str, ...] = ()
    match: dict[str, Expected] = field(default_factory=dict)
    """Path in the payload, see `engine.json_path` → what must stand there."""
    not_: dict[str, Expected] = field(default_factory=dict, name="not")
    """None of these may be so."""


class KiciEventTrigger(RegisteredTrigger, frozen=True, tag="kici_event"):
    name: str
    match: dict[str, Expected] = field(default_factory=dict)
    not_: dict[str, Expected] = field(default_factory=dict, name="not")
    source: tuple[str, ...] = ()
    """Repositories that emit it; empty = any."""


class WorkflowCompleteTrigger(RegisteredTrigger, frozen=True, tag="workflow_complete"):
    name: tuple[str, ...] = ()
    """Empty = any but the workflow itself."""
    status: tuple[str, ...] = ()
    source: tuple[str, ...] = ()


class JobCompleteTrigger(RegisteredTrigger, frozen=True, tag="job_complete"):
    workflow: tuple[str, ...] = ()
    """Empty = any but the workflow itself."""
    job: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    source: tuple[str, ...] = ()


class ScheduleTrigger(RegisteredTrigger, frozen=True, tag="schedule"):
    cron: str
    """Five fields, see `engine.cron`."""
    tz: str = "UTC"
    inputs: Inputs | None = None
    """Every one has a default."""


class LifecycleTrigger(RegisteredTrigger, frozen=True, tag="lifecycle"):
    events: tuple[str, ...]
    """`workflow_complete`, `job_complete`, `job_failed`"""
    sources: tuple[str, ...] = ()


Trigger = (
    PushTrigger
    | TagTrigger
    | PrTrigger
    | CommentTrigger
    | ReviewTrigger
    | ReviewCommentTrigger
    | ReleaseTrigger
    | DispatchTrigger
    | CreateTrigger
    | DeleteTrigger
    | StatusTrigger
    | WorkflowRunTrigger
    | ForkTrigger
    | StarTrigger
    | WatchTrigger
    | WebhookTrigger
    | KiciEventTrigger
    | WorkflowCompleteTrigger
    | JobCompleteTrigger
    | GenericWebhookTrigger
    | ScheduleTrigger
    | LifecycleTrigger
    | ManualTrigger
)
