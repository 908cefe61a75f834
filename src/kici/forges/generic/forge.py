"""Any sender that can sign its body or carry a key. It has no repository: workflows ask for it by the source's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kici.engine.events import Event, EventType
from kici.forges import payload as payloads
from kici.forges.contract import Body, Headers, Identity, Ignored, Normalized, Source
from kici.forges.signature import check_hmac_sha256, check_key

SIGNATURE = "x-signature-256"
KEY = "authorization"
NO_EVENT_TYPE = "default"

_DELIVERY_IDS = ("x-idempotency-key", "x-delivery-id", "x-request-id")
_EVENT_NAME_LENGTH = 255


class GenericForge:
    body_limit = 10 * 1024 * 1024

    def credential_headers(self, source: Source) -> frozenset[str]:
        return frozenset({_credential_header(source)})

    def verify(self, headers: Headers, body: Body, secrets: Sequence[bytes], source: Source) -> None:
        header = _credential_header(source)
        if source.verification_method == "api_key":
            check_key(header, headers.get(header), secrets)
        else:
            check_hmac_sha256(header, headers.get(header), body, secrets, prefix=False)

    def identify(self, headers: Headers, body: Body, source: Source) -> Identity:
        if source.event_type_path:
            payload = _decode(headers, body)
        else:
            _check(headers, body)
            payload = None
        names = (source.delivery_id_header.lower(), *_DELIVERY_IDS)
        return Identity(
            event_name=_event_type(headers, payload, source),
            delivery_id=next((headers[name] for name in names if headers.get(name)), ""),
        )

    def normalize(self, event_name: str, headers: Headers, body: Body, source: Source) -> Normalized | Ignored:
        return Normalized(
            Event(
                type=EventType.GENERIC_WEBHOOK,
                action="" if event_name == NO_EVENT_TYPE else event_name,
                source=source.name,
                event_name=event_name,
                forge_event=event_name,
                payload=_decode(headers, body),
            )
        )


def _credential_header(source: Source) -> str:
    return source.header_name.lower() or (KEY if source.verification_method == "api_key" else SIGNATURE)


def _is_json(headers: Headers) -> bool:
    kind = payloads.content_type(headers)
    return kind in ("", payloads.JSON) or kind.endswith("+json")


def _check(headers: Headers, body: Body) -> None:
    if len(body) and _is_json(headers):
        payloads.decode(payloads.checked_json, body)
    else:
        payloads.check_utf8(body)


def _decode(headers: Headers, body: Body) -> dict[str, Any]:
    """Always an object: JSON that is none becomes `value`, a form its fields, any other type the text `body`."""
    if not len(body):
        return {}
    if _is_json(headers):
        value = payloads.decode(payloads.any_json, body)
        return value if isinstance(value, dict) else {"value": value}
    if payloads.content_type(headers) == payloads.FORM:
        return dict(payloads.form(body))
    payloads.check_utf8(body)
    return {"body": str(body, "utf-8")}


def _event_type(headers: Headers, payload: dict[str, Any] | None, source: Source) -> str:
    name = headers.get(source.event_type_header.lower()) if source.event_type_header else None
    if not name and payload is not None:
        name = payloads.at_path(payload, source.event_type_path)
    name = name or headers.get("x-event-type") or NO_EVENT_TYPE
    return name.replace("\0", "")[:_EVENT_NAME_LENGTH] or NO_EVENT_TYPE
