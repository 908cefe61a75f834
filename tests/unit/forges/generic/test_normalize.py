from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from kici.forges.contract import BadSignature, Normalized
from kici.forges.generic.forge import GenericForge
from tests.contract.forges.samples import SECRET, generic

forge = GenericForge()


def payload_of(body: bytes, content_type: str) -> Any:
    delivery = generic(body, content_type)
    found = forge.normalize("alert", delivery.headers, delivery.body, delivery.source)
    assert isinstance(found, Normalized)
    return found.event.payload


@pytest.mark.parametrize(
    ("body", "content_type", "payload"),
    [
        (b'{"a": [1]}', "application/json; charset=utf-8", {"a": [1]}),
        (b'{"a": 1}', "", {"a": 1}),
        (b'{"a": 1}', "application/cloudevents+json", {"a": 1}),
        (b"[1, 2]", "application/json", {"value": [1, 2]}),
        (b"a=1&b=x%20y&a=2", "application/x-www-form-urlencoded", {"a": "2", "b": "x y"}),
        (b"disk is full", "text/plain", {"body": "disk is full"}),
        (b"", "application/json", {}),
    ],
)
def test_a_body_becomes_an_object_whatever_it_is(body: bytes, content_type: str, payload: Any) -> None:
    assert payload_of(body, content_type) == payload


@pytest.mark.parametrize(
    ("source", "headers", "body", "event_name"),
    [
        ({"event_type_header": "X-Kind"}, {"x-kind": "deploy", "x-event-type": "no"}, b"{}", "deploy"),
        ({"event_type_path": "$.meta.kind"}, {"x-event-type": "no"}, b'{"meta": {"kind": "deploy"}}', "deploy"),
        ({"event_type_path": "meta.kind"}, {"x-event-type": "alert"}, b'{"meta": {}}', "alert"),
        ({}, {"x-event-type": "alert"}, b"{}", "alert"),
        ({"event_type_header": "X-Kind"}, {}, b"{}", "default"),
        ({"event_type_path": "kind"}, {}, b'{"kind": "a\\u0000b"}', "ab"),
    ],
)
def test_the_event_is_named_by_header_then_path_then_custom(
    source: dict[str, Any], headers: dict[str, str], body: bytes, event_name: str
) -> None:
    delivery = generic(body, **source)
    assert forge.identify(headers, body, delivery.source).event_name == event_name


def test_a_sender_that_names_no_event_has_no_action() -> None:
    delivery = generic(b"{}")
    found = forge.normalize("default", delivery.headers, delivery.body, delivery.source)
    assert isinstance(found, Normalized)
    assert (found.event.event_name, found.event.action) == ("default", "")


def test_a_delivery_is_known_by_the_first_id_that_it_has() -> None:
    source = generic(b"{}", delivery_id_header="X-Gitlab-Event-UUID").source
    headers = {"x-request-id": "r", "x-delivery-id": "d", "x-idempotency-key": "i", "x-gitlab-event-uuid": "g"}
    for expected in ("g", "i", "d", "r", ""):
        assert forge.identify(headers, b"{}", source).delivery_id == expected
        headers = {name: value for name, value in headers.items() if value != expected}


def test_a_signature_needs_no_prefix() -> None:
    delivery = generic(b"{}")
    digest = hmac.new(SECRET, b"{}", hashlib.sha256).hexdigest()
    forge.verify({"x-signature-256": digest}, b"{}", [SECRET], delivery.source)
    forge.verify({"x-signature-256": digest.upper()}, b"{}", [SECRET], delivery.source)


def test_a_key_needs_no_bearer_and_may_stand_in_a_header_of_its_own() -> None:
    source = generic(b"{}", verification_method="api_key", header_name="X-My-Key").source
    forge.verify({"x-my-key": "s3cret"}, b"{}", [b"s3cret"], source)
    forge.verify({"x-my-key": "bearer s3cret"}, b"{}", [b"s3cret"], source)
    forge.verify({"x-my-key": "two words"}, b"{}", [b"two words"], source)
    for wrong in ("s3cre", "s3crets", "Bearer", "Bearer ", "Basic s3cret"):
        with pytest.raises(BadSignature):
            forge.verify({"x-my-key": wrong}, b"{}", [b"s3cret"], source)
    assert forge.credential_headers(source) == {"x-my-key"}
