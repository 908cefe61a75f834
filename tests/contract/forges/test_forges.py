"""What intake and the pipeline rely on, whichever forge it is."""

from __future__ import annotations

import mmap
import tempfile

import pytest

from kici.forges.contract import BadSignature, Forge, Identity, Normalized, Unreadable
from kici.forges.registry import forge_of
from tests.contract.forges import samples
from tests.contract.forges.samples import SECRET, Delivery

NAMES = sorted(samples.DELIVERIES)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def delivery(name: str) -> Delivery:
    return samples.DELIVERIES[name]


@pytest.fixture
def forge(delivery: Delivery) -> Forge:
    return forge_of(delivery.source.provider)


def test_who_knows_the_secret_is_let_in(forge: Forge, delivery: Delivery) -> None:
    forge.verify(delivery.signed(), delivery.body, [SECRET], delivery.source)


def test_while_a_secret_is_replaced_both_are_good(forge: Forge, delivery: Delivery) -> None:
    for first, second in ((b"another", SECRET), (SECRET, b"another")):
        forge.verify(delivery.signed(), delivery.body, [first, second], delivery.source)


def test_who_does_not_know_it_is_refused_in_words_that_do_not_hold_it(forge: Forge, delivery: Delivery) -> None:
    for headers in (
        delivery.headers,
        delivery.signed(b"wrong"),
        {**delivery.headers, delivery.signature_header: ""},
        {**delivery.headers, delivery.signature_header: "sha256="},
        {**delivery.headers, delivery.signature_header: "sha256=" + "g" * 64},
        {**delivery.headers, delivery.signature_header: "é"},
    ):
        with pytest.raises(BadSignature) as refused:
            forge.verify(headers, delivery.body, [SECRET], delivery.source)
        assert SECRET.decode() not in str(refused.value)
        assert delivery.signed()[delivery.signature_header] not in str(refused.value)


def test_a_source_without_a_secret_lets_nobody_in(forge: Forge, delivery: Delivery) -> None:
    with pytest.raises(BadSignature):
        forge.verify(delivery.signed(b""), delivery.body, [], delivery.source)


def test_one_changed_byte_breaks_a_signature(forge: Forge, delivery: Delivery) -> None:
    if delivery.sign == "key":
        pytest.skip("a key does not prove the body")
    with pytest.raises(BadSignature):
        forge.verify(delivery.signed(), delivery.body + b" ", [SECRET], delivery.source)


def test_what_proves_the_sender_is_named_so_that_it_is_not_stored(forge: Forge, delivery: Delivery) -> None:
    assert delivery.signature_header in forge.credential_headers(delivery.source)


def test_a_delivery_says_what_it_is(forge: Forge, name: str, delivery: Delivery) -> None:
    identity = forge.identify(delivery.signed(), delivery.body, delivery.source)
    assert identity.event_name
    assert identity.delivery_id
    assert identity.repo == samples.NORMALIZED[name].repo


def test_a_body_may_be_a_map_of_a_file(forge: Forge, delivery: Delivery) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(delivery.body)
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as body:
            forge.verify(delivery.signed(), body, [SECRET], delivery.source)
            mapped = forge.identify(delivery.headers, body, delivery.source)
    assert mapped == forge.identify(delivery.headers, delivery.body, delivery.source)


@pytest.mark.parametrize("body", [b"{", b'{"a": }', b'{"ref": "\xff"}', b"\x00", b'{"a": ' + b"[" * 100_000])
def test_a_body_that_is_not_json_is_refused(forge: Forge, delivery: Delivery, body: bytes) -> None:
    with pytest.raises(Unreadable):
        forge.identify(delivery.headers, body, delivery.source)


def test_an_event_has_everything_that_rules_and_workflows_use(forge: Forge, name: str, delivery: Delivery) -> None:
    identity: Identity = forge.identify(delivery.headers, delivery.body, delivery.source)
    found = forge.normalize(identity.event_name, delivery.headers, delivery.body, delivery.source)
    assert isinstance(found, Normalized)
    assert found.event == samples.NORMALIZED[name]


def test_the_same_row_gives_the_same_answer(forge: Forge, delivery: Delivery) -> None:
    event_name = forge.identify(delivery.headers, delivery.body, delivery.source).event_name
    first, second = (forge.normalize(event_name, delivery.headers, delivery.body, delivery.source) for _ in range(2))
    assert first == second
