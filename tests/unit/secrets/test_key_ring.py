from __future__ import annotations

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.secrets.errors import SecretUnreadable
from kici.orchestrator.secrets.key_ring import KeyRing

KEY = bytes(range(32))
OTHER = bytes(32)
ADDRESS = ("default", "prod/db", "PASSWORD")


@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20))
def test_what_is_sealed_opens_at_its_address(value: bytes, scope: str, key: str) -> None:
    ring = KeyRing({1: KEY})
    assert ring.open("default", scope, key, ring.seal("default", scope, key, value), 1) == value


@pytest.mark.parametrize(
    "elsewhere", [("other", *ADDRESS[1:]), ("default", "prod", "PASSWORD"), ("default", "prod/db", "USER")]
)
def test_a_value_that_was_moved_to_another_address_does_not_open(elsewhere: tuple[str, str, str]) -> None:
    ring = KeyRing({1: KEY})
    sealed = ring.seal(*ADDRESS, b"value")
    with pytest.raises(SecretUnreadable):
        ring.open(*elsewhere, sealed, 1)


def test_one_changed_bit_is_noticed() -> None:
    ring = KeyRing({1: KEY})
    sealed = bytearray(base64.b64decode(ring.seal(*ADDRESS, b"value")))
    for place in (0, 12, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(SecretUnreadable):
            ring.open(*ADDRESS, base64.b64encode(changed).decode(), 1)


@pytest.mark.parametrize("sealed", ["", "AAAA", "not base64"])
def test_a_row_that_is_no_sealed_value_is_told_apart_from_a_crash(sealed: str) -> None:
    with pytest.raises(SecretUnreadable):
        KeyRing({1: KEY}).open(*ADDRESS, sealed, 1)


def test_the_newest_key_seals_and_the_older_ones_still_open() -> None:
    sealed = KeyRing({1: KEY}).seal(*ADDRESS, b"value")
    both = KeyRing({1: KEY, 2: OTHER})
    assert both.current == 2
    assert both.open(*ADDRESS, sealed, 1) == b"value"
    assert both.open(*ADDRESS, both.seal(*ADDRESS, b"new"), 2) == b"new"
    with pytest.raises(SecretUnreadable, match="version 1"):
        KeyRing({2: OTHER}).open(*ADDRESS, sealed, 1)


def test_equal_values_look_different_and_scopes_have_keys_of_their_own() -> None:
    ring = KeyRing({1: KEY})
    assert ring.seal(*ADDRESS, b"value") != ring.seal(*ADDRESS, b"value")


def test_a_ring_shows_nothing_of_its_keys() -> None:
    ring = KeyRing({1: KEY})
    for shown in (repr(ring), str(ring), f"{ring}"):
        assert shown == "KeyRing(versions=[1])"
    with pytest.raises(TypeError):
        pickle.dumps(ring)
