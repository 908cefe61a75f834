"""GitHub: `X-Hub-Signature-256` over the raw body, JSON or the form with a `payload` field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kici.engine.events import Event, EventType
from kici.engine.inputs import texts
from kici.forges import payload as payloads
from kici.forges.contract import Body, ForgeError, Headers, Identity, Ignored, Normalized, Source, Unreadable
from kici.forges.github import activity
from kici.forges.github import payloads as github
from kici.forges.names import present
from kici.forges.signature import check_hmac_sha256

SIGNATURE = "x-hub-signature-256"


class _Named(Struct, frozen=True):
    full_name: str = ""


class _Glance(Struct, frozen=True):
    """What the event log shows of any GitHub event."""

    action: str | None = None
    ref: str | None = None
    repository: _Named | None = None
    sender: github.User | None = None


_glance = msgspec.json.Decoder(_Glance)
_push = msgspec.json.Decoder(github.Push)
_pull_request = msgspec.json.Decoder(github.PullRequestEvent)
_dispatch = msgspec.json.Decoder(github.RepositoryDispatch)


class GithubForge:
    body_limit = 25 * 1024 * 1024

    def credential_headers(self, source: Source) -> frozenset[str]:
        return frozenset({SIGNATURE, "x-hub-signature"})

    def verify(self, headers: Headers, body: Body, secrets: Sequence[bytes], source: Source) -> None:
        check_hmac_sha256("X-Hub-Signature-256", headers.get(SIGNATURE), body, secrets, prefix=True)

    def identify(self, headers: Headers, body: Body, source: Source) -> Identity:
        event_name = headers.get("x-github-event", "")
        delivery_id = headers.get("x-github-delivery", "")
        if not event_name or not delivery_id:
            missing = "X-GitHub-Delivery" if event_name else "X-GitHub-Event"
            raise Unreadable(f"the header {missing} is missing: GitHub always sends it")
        glance = payloads.decode(_glance, _json(headers, body))
        return Identity(
            event_name=event_name,
            delivery_id=delivery_id,
            action=glance.action or "",
            repo=glance.repository.full_name if glance.repository else "",
            ref=glance.ref or "",
        )

    def normalize(self, event_name: str, headers: Headers, body: Body, source: Source) -> Normalized | Ignored:
        normalize = _NORMALIZERS.get(event_name)
        data = _json(headers, body)
        if normalize is not None:
            found = normalize(data, source)
        elif event_name in activity.NAMES:
            event, repository = activity.event_of(event_name, data)
            found = Normalized(event, _clone_url(repository, source))
        else:
            found = _of_anything(data)
        if isinstance(found, Ignored):
            return found
        return replace(found, event=replace(found.event, forge_event=event_name))


def _json(headers: Headers, body: Body) -> Body:
    if payloads.content_type(headers) != payloads.FORM:
        return body
    try:
        return payloads.form(body)["payload"].encode()
    except KeyError:
        raise Unreadable("the form has no field 'payload': GitHub always sends it") from None


def _ping(body: Body, source: Source) -> Ignored:
    return Ignored("GitHub's ping: the webhook works")


def _of_push(body: Body, source: Source) -> Normalized | Ignored:
    push = payloads.decode(_push, body)
    kind, _, name = push.ref.removeprefix("refs/").partition("/")
    if kind not in ("heads", "tags") or not name:
        return Ignored(f"kici does nothing on a push to {push.ref}")
    is_tag = kind == "tags"
    head = push.head_commit
    sha = present(push.after)
    event = Event(
        type=EventType.TAG if is_tag else EventType.PUSH,
        branch="" if is_tag else name,
        tag=name if is_tag else "",
        # `after` of an annotated tag is the tag object, its head commit is what it points to.
        sha=head.id if is_tag and head and sha else sha,
        before=present(push.before),
        repo=push.repository.full_name,
        default_branch=push.repository.default_branch,
        actor=push.sender.login if push.sender else push.pusher.name,
        message=head.message if head else "",
        deleted=push.deleted or not sha,
        changed_files=None if is_tag else push.changed_files(),
        payload=payloads.decode(payloads.any_json, body),
    )
    return Normalized(event, _clone_url(push.repository, source))


def _of_pull_request(body: Body, source: Source) -> Normalized:
    found = payloads.decode(_pull_request, body)
    head, base = found.pull_request.head, found.pull_request.base
    event = Event(
        type=EventType.PULL_REQUEST,
        action=found.action,
        branch=head.ref,
        base_branch=base.ref,
        sha=head.sha,
        before=base.sha,
        repo=found.repository.full_name,
        default_branch=found.repository.default_branch,
        pr_number=found.number,
        # A fork that was deleted meanwhile is a fork.
        is_fork=head.repo is None or head.repo.full_name.lower() != found.repository.full_name.lower(),
        actor=found.sender.login if found.sender else "",
        message=found.pull_request.title,
        payload=payloads.decode(payloads.any_json, body),
    )
    return Normalized(event, _clone_url(found.repository, source))


def _of_dispatch(body: Body, source: Source) -> Normalized:
    found = payloads.decode(_dispatch, body)
    event = Event(
        type=EventType.DISPATCH,
        action=found.action,
        event_name=found.action,
        branch=found.branch or found.repository.default_branch,
        repo=found.repository.full_name,
        default_branch=found.repository.default_branch,
        actor=found.sender.login if found.sender else "",
        inputs=_inputs(found.client_payload or {}),
        payload=payloads.decode(payloads.any_json, body),
    )
    return Normalized(event, _clone_url(found.repository, source))


def _of_anything(body: Body) -> Normalized:
    """Only `webhook(…)` asks for it, by GitHub's own name; it starts what default branches have registered."""
    glance = payloads.decode(_glance, body)
    repo = glance.repository.full_name if glance.repository else ""
    event = Event(
        type=EventType.WEBHOOK,
        action=glance.action or "",
        repo=repo,
        source_repo=repo,
        actor=glance.sender.login if glance.sender else "",
        payload=payloads.decode(payloads.any_json, body),
    )
    return Normalized(event)


def _inputs(client_payload: dict[str, Any]) -> dict[str, str]:
    """As text. Lists and objects too, as JSON writes them: an input that is none must not get lost unseen."""
    return texts(client_payload)


def _clone_url(repository: github.Repository, source: Source) -> str:
    if source.clone_url:
        return source.clone_url.replace("{repo}", repository.full_name)
    if not repository.clone_url:
        raise ForgeError("the delivery names no clone_url, and the source has no clone URL of its own")
    return repository.clone_url


_NORMALIZERS: dict[str, Callable[[Body, Source], Normalized | Ignored]] = {
    "ping": _ping,
    "push": _of_push,
    "pull_request": _of_pull_request,
    "repository_dispatch": _of_dispatch,
}
