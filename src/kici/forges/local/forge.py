"""The repository that the orchestrator itself keeps: its post-receive hook is the sender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kici.engine.events import Event, EventType
from kici.forges import payload as payloads
from kici.forges.contract import (
    MAX_CHANGED_FILES,
    Body,
    Headers,
    Identity,
    Ignored,
    Normalized,
    Source,
    Unreadable,
)
from kici.forges.local import delivery
from kici.forges.names import BranchName, FullRef, RepoName, Sha, present
from kici.forges.signature import check_hmac_sha256


class Push(Struct, frozen=True):
    """Made by `kici.forges.local.post_receive`, one for each ref of a push."""

    repository: RepoName
    default_branch: BranchName
    ref: FullRef
    before: Sha
    after: Sha
    commit: Annotated[str, Meta(pattern=r"\A([0-9a-f]{40})?\Z")] = ""
    """What `after` points to; differs from it for an annotated tag."""
    message: str = ""
    pusher: str = ""
    changed_files: list[str] | None = None


_push = msgspec.json.Decoder(Push)


class LocalForge:
    body_limit = 25 * 1024 * 1024

    def credential_headers(self, source: Source) -> frozenset[str]:
        return frozenset({delivery.SIGNATURE})

    def verify(self, headers: Headers, body: Body, secrets: Sequence[bytes], source: Source) -> None:
        check_hmac_sha256(delivery.SIGNATURE, headers.get(delivery.SIGNATURE), body, secrets, prefix=True)

    def identify(self, headers: Headers, body: Body, source: Source) -> Identity:
        event_name = headers.get(delivery.EVENT, "")
        delivery_id = headers.get(delivery.DELIVERY, "")
        if not event_name or not delivery_id:
            raise Unreadable(f"the headers {delivery.EVENT} and {delivery.DELIVERY} are needed: kici's hook sends them")
        push = payloads.decode(_push, body)
        return Identity(event_name=event_name, delivery_id=delivery_id, repo=push.repository, ref=push.ref)

    def normalize(self, event_name: str, headers: Headers, body: Body, source: Source) -> Normalized | Ignored:
        if event_name != delivery.PUSH:
            return Ignored(f"kici does nothing on the event {event_name!r} of a local repository")
        push = payloads.decode(_push, body)
        kind, _, name = push.ref.removeprefix("refs/").partition("/")
        if kind not in ("heads", "tags") or not name:
            return Ignored(f"kici does nothing on a push to {push.ref}")
        is_tag = kind == "tags"
        sha = present(push.after)
        files = push.changed_files
        event = Event(
            type=EventType.TAG if is_tag else EventType.PUSH,
            branch="" if is_tag else name,
            tag=name if is_tag else "",
            sha=(push.commit or sha) if sha else "",
            before=present(push.before),
            repo=push.repository,
            default_branch=push.default_branch,
            actor=push.pusher,
            forge_event=event_name,
            message=push.message,
            deleted=not sha,
            changed_files=None if files is None or len(files) > MAX_CHANGED_FILES else tuple(files),
            payload=payloads.decode(payloads.any_json, body),
        )
        return Normalized(event, source.clone_url.replace("{repo}", push.repository))
