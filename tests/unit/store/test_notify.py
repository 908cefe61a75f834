from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.store.notify import PAYLOAD_BYTES, Listener, Notifier, payloads


@given(st.sets(st.text(st.characters(exclude_characters=",", codec="utf-8"), min_size=1, max_size=60), min_size=1))
def test_payloads_carry_every_key_or_say_that_anything_may_have_changed(keys: set[str]) -> None:
    texts = payloads(keys)
    assert all(len(text.encode()) < 8000 for text in texts)
    assert texts == [""] or {key for text in texts for key in text.split(",")} == keys


def test_many_keys_are_spread_over_few_notifications() -> None:
    texts = payloads({f"{n:036}" for n in range(500)})
    assert 1 < len(texts) <= 8
    assert max(len(text) for text in texts) <= PAYLOAD_BYTES


@pytest.mark.parametrize("keys", [{""}, {"", "a"}, {"a,b"}, {"x" * 8000}, {f"{n:036}" for n in range(5000)}])
def test_what_cannot_be_told_exactly_says_that_anything_may_have_changed(keys: set[str]) -> None:
    assert payloads(keys) == [""]


def test_an_unknown_channel_is_a_fault_of_the_caller() -> None:
    nowhere: Any = None
    with pytest.raises(ValueError, match="no channel 'kici_evnets'"):
        Notifier(nowhere).send("kici_evnets")
    with pytest.raises(ValueError, match="no channel"):
        Listener("").subscribe("kici_evnets", lambda keys: None)
