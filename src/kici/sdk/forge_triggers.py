"""Triggers for what else happens at a forge: comments, reviews, releases, refs, statuses, stars.

Their workflows are those of the default branch, except on a pull request, where its base branch decides.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from kici.sdk.problems import refuse
from kici.sdk.triggers import Choice, Trigger, Words, checked_choice
from kici.sdk.values import Pattern, Patterns, checked_patterns, checked_words

CommentAction: TypeAlias = Literal["created", "edited", "deleted"]
CommentSource: TypeAlias = Literal["issue", "pr"]
ReviewAction: TypeAlias = Literal["submitted", "edited", "dismissed"]
ReviewState: TypeAlias = Literal["approved", "changes_requested", "commented", "dismissed"]
ReleaseAction: TypeAlias = Literal[
    "published", "unpublished", "created", "edited", "deleted", "prereleased", "released"
]
RefType: TypeAlias = Literal["branch", "tag"]
StatusState: TypeAlias = Literal["error", "failure", "pending", "success"]
WorkflowRunAction: TypeAlias = Literal["requested", "completed", "in_progress"]
Conclusion: TypeAlias = Literal[
    "success",
    "failure",
    "neutral",
    "cancelled",
    "skipped",
    "timed_out",
    "action_required",
    "stale",
    "startup_failure",
]
StarAction: TypeAlias = Literal["created", "deleted"]
WatchAction: TypeAlias = Literal["started"]


class Comment(Trigger, frozen=True):
    actions: tuple[str, ...]
    source: tuple[str, ...]
    body_match: tuple[Pattern, ...]


class Review(Trigger, frozen=True):
    actions: tuple[str, ...]
    states: tuple[str, ...]


class ReviewComment(Trigger, frozen=True):
    actions: tuple[str, ...]


class Release(Trigger, frozen=True):
    actions: tuple[str, ...]


class Create(Trigger, frozen=True):
    ref_types: tuple[str, ...]
    patterns: tuple[Pattern, ...]


class Delete(Trigger, frozen=True):
    ref_types: tuple[str, ...]
    patterns: tuple[Pattern, ...]


class Status(Trigger, frozen=True):
    contexts: tuple[Pattern, ...]
    states: tuple[str, ...]


class WorkflowRun(Trigger, frozen=True):
    actions: tuple[str, ...]
    workflows: tuple[str, ...]
    conclusions: tuple[str, ...]


class Fork(Trigger, frozen=True):
    pass


class Star(Trigger, frozen=True):
    actions: tuple[str, ...]


class Watch(Trigger, frozen=True):
    actions: tuple[str, ...]


class Webhook(Trigger, frozen=True):
    events: tuple[str, ...]
    actions: tuple[str, ...]


def comment(
    *, actions: Choice[CommentAction] = (), source: Choice[CommentSource] = (), body_match: Patterns = ()
) -> Comment:
    """A comment on an issue or a pull request.

    A text in `body_match` is looked for anywhere in the comment; with `*` or `?` in it, it must match the whole first
    line: `"/deploy *"`. A regular expression is searched for.
    """
    return Comment(
        checked_choice("comment(…)", "actions", actions, get_args(CommentAction)),
        checked_choice("comment(…)", "source", source, get_args(CommentSource)),
        checked_patterns("comment(…)", "body_match", body_match),
    )


def review(*, actions: Choice[ReviewAction] = (), states: Choice[ReviewState] = ()) -> Review:
    """A review of a pull request."""
    return Review(
        checked_choice("review(…)", "actions", actions, get_args(ReviewAction)),
        checked_choice("review(…)", "states", states, get_args(ReviewState)),
    )


def review_comment(*, actions: Choice[CommentAction] = ()) -> ReviewComment:
    """A comment on a line of a pull request."""
    return ReviewComment(checked_choice("review_comment(…)", "actions", actions, get_args(CommentAction)))


def release(*, actions: Choice[ReleaseAction] = ()) -> Release:
    """A release of the forge; the job checks out its tag."""
    return Release(checked_choice("release(…)", "actions", actions, get_args(ReleaseAction)))


def create(*, ref_types: Choice[RefType] = (), patterns: Patterns = ()) -> Create:
    """A branch or tag that came to be; the job checks it out."""
    return Create(
        checked_choice("create(…)", "ref_types", ref_types, get_args(RefType)),
        checked_patterns("create(…)", "patterns", patterns),
    )


def delete(*, ref_types: Choice[RefType] = (), patterns: Patterns = ()) -> Delete:
    """A branch or tag that is gone; the job checks out the default branch."""
    return Delete(
        checked_choice("delete(…)", "ref_types", ref_types, get_args(RefType)),
        checked_patterns("delete(…)", "patterns", patterns),
    )


def status(*, contexts: Patterns = (), states: Choice[StatusState] = ()) -> Status:
    """A status that somebody gave a commit; the job checks out the default branch."""
    return Status(
        checked_patterns("status(…)", "contexts", contexts),
        checked_choice("status(…)", "states", states, get_args(StatusState)),
    )


def workflow_run(
    *, actions: Choice[WorkflowRunAction] = (), workflows: Words = (), conclusions: Choice[Conclusion] = ()
) -> WorkflowRun:
    """A run of GitHub Actions; `workflows` are their names. For workflows of kici there is `workflow_complete`."""
    return WorkflowRun(
        checked_choice("workflow_run(…)", "actions", actions, get_args(WorkflowRunAction)),
        checked_words("workflow_run(…)", "workflows", workflows),
        checked_choice("workflow_run(…)", "conclusions", conclusions, get_args(Conclusion)),
    )


def fork() -> Fork:
    """Somebody forked the repository."""
    return Fork()


def star(*, actions: Choice[StarAction] = ()) -> Star:
    """Somebody gave the repository a star, or took it back."""
    return Star(checked_choice("star(…)", "actions", actions, get_args(StarAction)))


def watch(*, actions: Choice[WatchAction] = ()) -> Watch:
    """Somebody watches the repository."""
    return Watch(checked_choice("watch(…)", "actions", actions, get_args(WatchAction)))


def webhook(events: Words, *, actions: Words = ()) -> Webhook:
    """Any delivery of a source, by the sender's own name of the event: `webhook("deployment_status")`.

    It must be on the default branch, and also gets what other repositories' sources deliver.
    """
    wanted = checked_words("webhook(…)", "events", events)
    if not wanted:
        refuse("webhook(…)", 'events is empty: name the sender\'s events, such as "deployment_status"')
    return Webhook(wanted, checked_words("webhook(…)", "actions", actions))
