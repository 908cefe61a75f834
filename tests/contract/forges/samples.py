"""Deliveries as the forges send them, cut down to what a delivery of that kind always has."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kici.engine.events import Event, EventType
from kici.forges.contract import Source

SECRET = b"a secret of the source"
BEFORE = "6113728f27ae82c7b1a177c8d03f9e96e0adf246"
AFTER = "7638417db6d59f3c431d3e1f261cc637155684cd"
TAG_OBJECT = "1111111111111111111111111111111111111111"
ZERO = "0" * 40

REPOSITORY = {
    "id": 186853002,
    "node_id": "MDEwOlJlcG9zaXRvcnkxODY4NTMwMDI=",
    "name": "Hello-World",
    "full_name": "Codertocat/Hello-World",
    "private": False,
    "owner": {"name": "Codertocat", "login": "Codertocat", "id": 21031067, "type": "User"},
    "html_url": "https://github.com/Codertocat/Hello-World",
    "fork": False,
    "clone_url": "https://github.com/Codertocat/Hello-World.git",
    "default_branch": "main",
}
SENDER = {"login": "Codertocat", "id": 21031067, "type": "User", "site_admin": False}
COMMIT = {
    "id": AFTER,
    "tree_id": "31b122c26a97cf9af023e9ddab94a82c6e77b0ea",
    "distinct": True,
    "message": "Update README.md\n\nwith words",
    "timestamp": "2019-05-15T15:20:30Z",
    "author": {"name": "Codertocat", "email": "21031067+Codertocat@users.noreply.github.com"},
    "added": ["docs/new.md"],
    "removed": ["old.md"],
    "modified": ["README.md"],
}
GITHUB_PUSH: dict[str, Any] = {
    "ref": "refs/heads/feature/x",
    "before": BEFORE,
    "after": AFTER,
    "repository": REPOSITORY,
    "pusher": {"name": "Codertocat", "email": "21031067+Codertocat@users.noreply.github.com"},
    "sender": SENDER,
    "created": False,
    "deleted": False,
    "forced": False,
    "base_ref": None,
    "compare": "https://github.com/Codertocat/Hello-World/compare/6113728f27ae...7638417db6d5",
    "commits": [COMMIT],
    "head_commit": COMMIT,
}
GITHUB_PULL_REQUEST: dict[str, Any] = {
    "action": "opened",
    "number": 2,
    "pull_request": {
        "id": 279147437,
        "number": 2,
        "state": "open",
        "title": "Update the README with new information.",
        "user": SENDER,
        "body": None,
        "head": {"label": "Codertocat:changes", "ref": "changes", "sha": AFTER, "user": SENDER, "repo": REPOSITORY},
        "base": {"label": "Codertocat:main", "ref": "main", "sha": BEFORE, "user": SENDER, "repo": REPOSITORY},
        "draft": False,
    },
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_DISPATCH: dict[str, Any] = {
    "action": "deploy",
    "branch": "main",
    "client_payload": {"target": "staging", "dry": True, "count": 3, "list": [1]},
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_PING: dict[str, Any] = {
    "zen": "Favor focus over features.",
    "hook_id": 109948940,
    "hook": {"type": "Repository", "id": 109948940, "events": ["*"], "config": {"content_type": "json"}},
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_COMMENT: dict[str, Any] = {
    "action": "created",
    "issue": {
        "number": 1,
        "title": "Spelling error",
        "state": "open",
        "user": SENDER,
        "body": "It looks like",
        "id": 4,
    },
    "comment": {"id": 492700400, "user": SENDER, "author_association": "OWNER", "body": "/deploy staging\nnow"},
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_PULL_REQUEST_COMMENT: dict[str, Any] = {
    **GITHUB_COMMENT,
    "issue": {
        **GITHUB_COMMENT["issue"],
        "number": 2,
        "pull_request": {"url": "https://api.github.com/repos/Codertocat/Hello-World/pulls/2"},
    },
}
GITHUB_REVIEW: dict[str, Any] = {
    "action": "submitted",
    "review": {"id": 237895671, "user": SENDER, "body": None, "commit_id": AFTER, "state": "approved"},
    "pull_request": GITHUB_PULL_REQUEST["pull_request"],
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_REVIEW_COMMENT: dict[str, Any] = {
    "action": "created",
    "comment": {"id": 284312630, "path": "README.md", "position": 1, "body": "Maybe more emoji", "user": SENDER},
    "pull_request": GITHUB_PULL_REQUEST["pull_request"],
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_RELEASE: dict[str, Any] = {
    "action": "published",
    "release": {
        "id": 17372790,
        "tag_name": "0.0.1",
        "target_commitish": "main",
        "name": None,
        "draft": False,
        "body": "",
    },
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_CREATE: dict[str, Any] = {
    "ref": "simple-tag",
    "ref_type": "tag",
    "master_branch": "main",
    "description": None,
    "pusher_type": "user",
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_DELETE: dict[str, Any] = {
    "ref": "feature/x",
    "ref_type": "branch",
    "pusher_type": "user",
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_STATUS: dict[str, Any] = {
    "id": 6805126730,
    "sha": AFTER,
    "name": "Codertocat/Hello-World",
    "target_url": None,
    "context": "ci/build",
    "description": None,
    "state": "failure",
    "commit": {"sha": AFTER},
    "branches": [{"name": "feature/x", "commit": {"sha": AFTER}, "protected": False}],
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_WORKFLOW_RUN: dict[str, Any] = {
    "action": "completed",
    "workflow_run": {
        "id": 30433642,
        "name": "Build",
        "head_branch": "feature/x",
        "head_sha": AFTER,
        "event": "push",
        "status": "completed",
        "conclusion": "success",
    },
    "workflow": {"id": 159038, "name": "Build", "path": ".github/workflows/build.yml"},
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_FORK: dict[str, Any] = {
    "forkee": {**REPOSITORY, "full_name": "Octocoders/Hello-World", "fork": True},
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_STAR: dict[str, Any] = {
    "action": "created",
    "starred_at": "2019-05-15T15:20:40Z",
    "repository": REPOSITORY,
    "sender": SENDER,
}
GITHUB_WATCH: dict[str, Any] = {"action": "started", "repository": REPOSITORY, "sender": SENDER}
GITHUB_DEPLOYMENT: dict[str, Any] = {
    "action": "created",
    "deployment": {"id": 145988746, "sha": AFTER, "ref": "main", "task": "deploy", "environment": "production"},
    "repository": REPOSITORY,
    "sender": SENDER,
}
LOCAL_PUSH: dict[str, Any] = {
    "repository": "local/demo",
    "default_branch": "main",
    "ref": "refs/heads/main",
    "before": BEFORE,
    "after": AFTER,
    "commit": AFTER,
    "message": "Say hello",
    "pusher": "ada",
    "changed_files": ["README.md", "src/a.py"],
}


class Delivery(Struct, frozen=True):
    source: Source
    headers: dict[str, str]
    body: bytes
    signature_header: str
    sign: str = "hmac"

    def signed(self, secret: bytes = SECRET) -> dict[str, str]:
        if self.sign == "key":
            value = f"Bearer {secret.decode()}"
        else:
            value = "sha256=" + hmac.new(secret, self.body, hashlib.sha256).hexdigest()
        return {**self.headers, self.signature_header: value}


def github(event: str, payload: Mapping[str, Any], **source: Any) -> Delivery:
    return Delivery(
        Source(name="hub", provider="github", routing_key="github:hub", **source),
        {
            "content-type": "application/json",
            "user-agent": "GitHub-Hookshot/044aadd",
            "x-github-event": event,
            "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        },
        json.dumps(payload).encode(),
        "x-hub-signature-256",
    )


def generic(payload: bytes, content_type: str = "application/json", **source: Any) -> Delivery:
    method = source.get("verification_method", "hmac_sha256")
    default = "authorization" if method == "api_key" else "x-signature-256"
    return Delivery(
        Source(name="monitor", provider="generic", routing_key="generic:default:1", **source),
        {"content-type": content_type, "x-event-type": "alert", "x-delivery-id": "d-1"},
        payload,
        str(source.get("header_name", "")).lower() or default,
        "key" if method == "api_key" else "hmac",
    )


def local(payload: Mapping[str, Any] = LOCAL_PUSH) -> Delivery:
    return Delivery(
        Source(name="demo", provider="internal", routing_key="generic:default:2"),
        {
            "content-type": "application/json",
            "x-kici-event": "push",
            "x-kici-delivery": "4b2c6c5e-7d3f-4e0c-9a39-0a6c0a5d0f11",
        },
        json.dumps(payload).encode(),
        "x-kici-signature-256",
    )


DELIVERIES = {
    "github push": github("push", GITHUB_PUSH),
    "github pull request": github("pull_request", GITHUB_PULL_REQUEST),
    "github dispatch": github("repository_dispatch", GITHUB_DISPATCH),
    "github comment": github("issue_comment", GITHUB_COMMENT),
    "github comment on a pull request": github("issue_comment", GITHUB_PULL_REQUEST_COMMENT),
    "github review": github("pull_request_review", GITHUB_REVIEW),
    "github review comment": github("pull_request_review_comment", GITHUB_REVIEW_COMMENT),
    "github release": github("release", GITHUB_RELEASE),
    "github create": github("create", GITHUB_CREATE),
    "github delete": github("delete", GITHUB_DELETE),
    "github status": github("status", GITHUB_STATUS),
    "github workflow run": github("workflow_run", GITHUB_WORKFLOW_RUN),
    "github fork": github("fork", GITHUB_FORK),
    "github star": github("star", GITHUB_STAR),
    "github watch": github("watch", GITHUB_WATCH),
    "github anything": github("deployment", GITHUB_DEPLOYMENT),
    "generic with a signature": generic(b'{"severity": "high"}'),
    "generic with a key": generic(b'{"severity": "high"}', verification_method="api_key"),
    "local push": local(),
}


def _of_github(kind: EventType, forge_event: str, payload: Any, *, branch: str = "main", **fields: Any) -> Event:
    return Event(
        kind,
        action=payload.get("action", ""),
        branch=branch,
        repo="Codertocat/Hello-World",
        actor="Codertocat",
        forge_event=forge_event,
        payload=payload,
        **fields,
    )


_REVIEWED: dict[str, Any] = {
    "pr_number": 2,
    "issue_number": 2,
    "branch": "changes",
    "base_branch": "main",
    "sha": AFTER,
    "message": "Update the README with new information.",
}

NORMALIZED = {
    "github push": Event(
        EventType.PUSH,
        branch="feature/x",
        sha=AFTER,
        before=BEFORE,
        repo="Codertocat/Hello-World",
        default_branch="main",
        actor="Codertocat",
        message="Update README.md\n\nwith words",
        changed_files=("README.md", "docs/new.md", "old.md"),
        forge_event="push",
        payload=GITHUB_PUSH,
    ),
    "github pull request": Event(
        EventType.PULL_REQUEST,
        action="opened",
        branch="changes",
        base_branch="main",
        sha=AFTER,
        before=BEFORE,
        repo="Codertocat/Hello-World",
        pr_number=2,
        actor="Codertocat",
        message="Update the README with new information.",
        forge_event="pull_request",
        payload=GITHUB_PULL_REQUEST,
    ),
    "github dispatch": Event(
        EventType.DISPATCH,
        action="deploy",
        event_name="deploy",
        branch="main",
        repo="Codertocat/Hello-World",
        actor="Codertocat",
        inputs={"target": "staging", "dry": "true", "count": "3", "list": "[1]"},
        forge_event="repository_dispatch",
        payload=GITHUB_DISPATCH,
    ),
    "github comment": _of_github(
        EventType.COMMENT, "issue_comment", GITHUB_COMMENT, issue_number=1, body="/deploy staging\nnow"
    ),
    "github comment on a pull request": _of_github(
        EventType.COMMENT,
        "issue_comment",
        GITHUB_PULL_REQUEST_COMMENT,
        branch="",
        issue_number=2,
        pr_number=2,
        body="/deploy staging\nnow",
    ),
    "github review": _of_github(EventType.REVIEW, "pull_request_review", GITHUB_REVIEW, state="approved", **_REVIEWED),
    "github review comment": _of_github(
        EventType.REVIEW_COMMENT,
        "pull_request_review_comment",
        GITHUB_REVIEW_COMMENT,
        body="Maybe more emoji",
        **_REVIEWED,
    ),
    "github release": _of_github(
        EventType.RELEASE, "release", GITHUB_RELEASE, branch="", tag="0.0.1", event_name="0.0.1"
    ),
    "github create": _of_github(
        EventType.CREATE, "create", GITHUB_CREATE, branch="", tag="simple-tag", event_name="simple-tag", ref_type="tag"
    ),
    "github delete": _of_github(EventType.DELETE, "delete", GITHUB_DELETE, event_name="feature/x", ref_type="branch"),
    "github status": _of_github(
        EventType.STATUS, "status", GITHUB_STATUS, event_name="ci/build", state="failure", commit=AFTER
    ),
    "github workflow run": _of_github(
        EventType.WORKFLOW_RUN, "workflow_run", GITHUB_WORKFLOW_RUN, event_name="Build", state="success", commit=AFTER
    ),
    "github fork": _of_github(EventType.FORK, "fork", GITHUB_FORK),
    "github star": _of_github(EventType.STAR, "star", GITHUB_STAR),
    "github watch": _of_github(EventType.WATCH, "watch", GITHUB_WATCH),
    "github anything": Event(
        EventType.WEBHOOK,
        action="created",
        actor="Codertocat",
        repo="Codertocat/Hello-World",
        source_repo="Codertocat/Hello-World",
        forge_event="deployment",
        payload=GITHUB_DEPLOYMENT,
    ),
    "generic with a signature": Event(
        EventType.GENERIC_WEBHOOK,
        action="alert",
        source="monitor",
        event_name="alert",
        forge_event="alert",
        payload={"severity": "high"},
    ),
    "generic with a key": Event(
        EventType.GENERIC_WEBHOOK,
        action="alert",
        source="monitor",
        event_name="alert",
        forge_event="alert",
        payload={"severity": "high"},
    ),
    "local push": Event(
        EventType.PUSH,
        branch="main",
        sha=AFTER,
        before=BEFORE,
        repo="local/demo",
        actor="ada",
        message="Say hello",
        changed_files=("README.md", "src/a.py"),
        forge_event="push",
        payload=LOCAL_PUSH,
    ),
}
