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
    "generic with a signature": generic(b'{"severity": "high"}'),
    "generic with a key": generic(b'{"severity": "high"}', verification_method="api_key"),
    "local push": local(),
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
        payload=GITHUB_DISPATCH,
    ),
    "generic with a signature": Event(
        EventType.GENERIC_WEBHOOK, action="alert", source="monitor", event_name="alert", payload={"severity": "high"}
    ),
    "generic with a key": Event(
        EventType.GENERIC_WEBHOOK, action="alert", source="monitor", event_name="alert", payload={"severity": "high"}
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
        payload=LOCAL_PUSH,
    ),
}
