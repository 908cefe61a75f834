"""Comments, reviews, releases and whatever else GitHub tells of a repository → events.

None of them names the commit that is to be checked out, except a review, which is about the head of its pull request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from kici.engine.events import Event, EventType
from kici.forges import payload as payloads
from kici.forges.contract import Body
from kici.forges.github.payloads import PullRequest, Repository, User
from kici.forges.names import BranchName, Sha

MAX_BODY: Final = 262_144
"""Characters of a comment that filters see; GitHub allows fewer."""


class _Any(Struct, frozen=True):
    repository: Repository
    action: str = ""
    sender: User | None = None


class _Text(Struct, frozen=True):
    body: str | None = None
    state: str = ""


class _Issue(Struct, frozen=True):
    number: int
    pull_request: dict[str, Any] | None = None
    """There if the issue is a pull request."""


class _IssueComment(_Any, frozen=True, kw_only=True):
    issue: _Issue
    comment: _Text


class _NumberedPullRequest(PullRequest, frozen=True, kw_only=True):
    number: int


class _Review(_Any, frozen=True, kw_only=True):
    review: _Text
    pull_request: _NumberedPullRequest


class _ReviewComment(_Any, frozen=True, kw_only=True):
    comment: _Text
    pull_request: _NumberedPullRequest


class _ReleaseText(_Text, frozen=True, kw_only=True):
    tag_name: BranchName


class _Release(_Any, frozen=True, kw_only=True):
    release: _ReleaseText


class _Ref(_Any, frozen=True, kw_only=True):
    ref: BranchName
    ref_type: str


class _Status(_Any, frozen=True, kw_only=True):
    sha: Sha
    state: str
    context: str


class _Run(Struct, frozen=True):
    name: str | None = None
    head_sha: Sha = ""
    conclusion: str | None = None


class _WorkflowRun(_Any, frozen=True, kw_only=True):
    workflow_run: _Run


def _issue_comment(found: _IssueComment) -> dict[str, Any]:
    on_pull_request = found.issue.pull_request is not None
    return {
        "type": EventType.COMMENT,
        "issue_number": found.issue.number,
        "pr_number": found.issue.number if on_pull_request else 0,
        "body": _text(found.comment),
        "branch": "" if on_pull_request else found.repository.default_branch,
    }


def _review(found: _Review) -> dict[str, Any]:
    return {
        "type": EventType.REVIEW,
        "body": _text(found.review),
        "state": found.review.state.lower(),
        **_of_pull_request(found.pull_request, found.repository),
    }


def _review_comment(found: _ReviewComment) -> dict[str, Any]:
    return {
        "type": EventType.REVIEW_COMMENT,
        "body": _text(found.comment),
        **_of_pull_request(found.pull_request, found.repository),
    }


def _of_pull_request(pull_request: _NumberedPullRequest, repository: Repository) -> dict[str, Any]:
    head, base = pull_request.head, pull_request.base
    return {
        "pr_number": pull_request.number,
        "issue_number": pull_request.number,
        "branch": head.ref,
        "base_branch": base.ref,
        "sha": head.sha,
        "is_fork": head.repo is None or head.repo.full_name.lower() != repository.full_name.lower(),
        "message": pull_request.title,
    }


def _release(found: _Release) -> dict[str, Any]:
    return {
        "type": EventType.RELEASE,
        "tag": found.release.tag_name,
        "event_name": found.release.tag_name,
        "body": _text(found.release),
    }


def _create(found: _Ref) -> dict[str, Any]:
    where = "tag" if found.ref_type == "tag" else "branch"
    return {"type": EventType.CREATE, "ref_type": found.ref_type, "event_name": found.ref, where: found.ref}


def _delete(found: _Ref) -> dict[str, Any]:
    branch = found.repository.default_branch
    return {"type": EventType.DELETE, "ref_type": found.ref_type, "event_name": found.ref, "branch": branch}


def _status(found: _Status) -> dict[str, Any]:
    return {
        "type": EventType.STATUS,
        "event_name": found.context,
        "state": found.state.lower(),
        "commit": found.sha,
        "branch": found.repository.default_branch,
    }


def _workflow_run(found: _WorkflowRun) -> dict[str, Any]:
    return {
        "type": EventType.WORKFLOW_RUN,
        "event_name": found.workflow_run.name or "",
        "state": (found.workflow_run.conclusion or "").lower(),
        "commit": found.workflow_run.head_sha,
        "branch": found.repository.default_branch,
    }


def _simple(kind: EventType) -> Callable[[_Any], dict[str, Any]]:
    return lambda found: {"type": kind, "branch": found.repository.default_branch}


def _text(text: _Text) -> str:
    return (text.body or "")[:MAX_BODY]


_KINDS: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[Any], dict[str, Any]]]] = {
    "issue_comment": (msgspec.json.Decoder(_IssueComment), _issue_comment),
    "pull_request_review": (msgspec.json.Decoder(_Review), _review),
    "pull_request_review_comment": (msgspec.json.Decoder(_ReviewComment), _review_comment),
    "release": (msgspec.json.Decoder(_Release), _release),
    "create": (msgspec.json.Decoder(_Ref), _create),
    "delete": (msgspec.json.Decoder(_Ref), _delete),
    "status": (msgspec.json.Decoder(_Status), _status),
    "workflow_run": (msgspec.json.Decoder(_WorkflowRun), _workflow_run),
    "fork": (msgspec.json.Decoder(_Any), _simple(EventType.FORK)),
    "star": (msgspec.json.Decoder(_Any), _simple(EventType.STAR)),
    "watch": (msgspec.json.Decoder(_Any), _simple(EventType.WATCH)),
}
NAMES = frozenset(_KINDS)
"""As GitHub calls them."""


def event_of(name: str, body: Body) -> tuple[Event, Repository]:
    """For one of `NAMES`. Raises `Unreadable`."""
    decoder, fields = _KINDS[name]
    found = payloads.decode(decoder, body)
    event = Event(
        action=found.action,
        repo=found.repository.full_name,
        default_branch=found.repository.default_branch,
        actor=found.sender.login if found.sender else "",
        payload=payloads.decode(payloads.any_json, body),
        **fields(found),
    )
    return event, found.repository
