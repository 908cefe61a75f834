from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.agent.masking import Masker, Secrets
from kici.agent.secret_forms import patterns

LETTERS = "ab%é\n="
secrets = st.text(LETTERS, min_size=1, max_size=9)
texts = st.lists(st.sampled_from(["a", "b", "ab", "é", "\n", "=", "x", "%", "SECRET"]), max_size=40)


def masked(values: list[str], pieces: list[bytes]) -> bytes:
    masker = Masker(values)
    return b"".join([masker.feed(piece) for piece in pieces]) + masker.flush()


def naive(values: list[str], text: bytes) -> bytes:
    """What the law says: the union of all occurrences, each connected part becomes one mask."""
    spans = sorted(
        (start, start + len(pattern))
        for value in values
        for pattern in patterns(value)
        for start in range(len(text))
        if text.startswith(pattern, start)
    )
    out, position = b"", 0
    for start, end in spans:
        if start >= position:
            out += text[position:start] + b"***"
        position = max(position, end)
    return out + text[position:]


def cut(text: bytes, borders: list[int]) -> list[bytes]:
    places = [0, *sorted(border % (len(text) + 1) for border in borders), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(secrets, max_size=4), texts, st.lists(st.integers(0, 500), max_size=8))
def test_the_output_is_the_text_with_every_secret_masked_however_it_was_cut(
    values: list[str], words: list[str], borders: list[int]
) -> None:
    text = "".join(values[0] if word == "SECRET" and values else word for word in words).encode()
    assert masked(values, cut(text, borders)) == naive(values, text)


@given(st.text(max_size=40), st.lists(st.integers(0, 300), max_size=6), st.binary(max_size=4))
def test_no_form_of_a_secret_gets_through(rest: str, borders: list[int], before: bytes) -> None:
    value = "s3cr3t" + rest
    raw = value.encode()
    forms = [raw, base64.b64encode(raw), quote(value, safe="").encode(), json.dumps(value)[1:-1].encode()]
    for form in forms:
        out = masked([value], cut(before + b" " + form + b" tail", borders))
        assert form not in out


@pytest.mark.parametrize("offset", range(3))
def test_base64_of_a_text_that_contains_the_secret_is_masked(offset: int) -> None:
    encoded = base64.b64encode(b"u" * offset + b":hunter2-is-long:" + b"x" * 5)
    out = masked([":hunter2-is-long:"], [encoded])
    assert b"***" in out
    assert len(out) < len(encoded) - 10


def test_text_without_secrets_is_intact() -> None:
    text = "nothing to see\nüber alles\r\n\x1b[31mred\x1b[0m".encode()
    assert masked(["hunter2"], [text]) == text
    assert masked([], [text]) == text


def test_each_line_of_a_secret_with_several_is_masked_but_not_its_brackets() -> None:
    key = "{\n  first-half\n  second-half\n}\n"
    assert masked([key], [b"{ first-half }\nsecond", b"-half\n"]) == b"{ *** }\n***\n"


def test_base64_that_a_program_has_wrapped_is_masked() -> None:
    value = "k" * 100 + "0123456789" * 10
    assert masked([value], [base64.encodebytes(value.encode())]) == b"***\n***\n***\n***\n"


def test_a_complete_line_is_not_held_back() -> None:
    masker = Masker(["a-very-long-secret-value"])
    assert masker.feed(b"hello\nwor") == b"hello\n"
    assert masker.flush() == b"wor"


def test_a_value_that_is_too_short_masks_nothing() -> None:
    assert patterns("ab") == set()
    assert masked(["ab"], [b"ab abc"]) == b"ab abc"


def test_a_value_that_is_added_later_is_masked_from_then_on_in_every_stream() -> None:
    shared = Secrets(["first-one"])
    one, other = Masker(shared), Masker(shared)
    one.add("second-one")
    assert other.feed(b"first-one second-one\n") == b"*** ***\n"


def test_secrets_are_masked_inside_outputs_and_not_shown_by_repr() -> None:
    secret = Secrets(["hunter2"])
    assert secret.mask_all({"hunter2": ["x hunter2", 7, {"a": None}]}) == {"***": ["x ***", 7, {"a": None}]}
    assert "hunter2" not in repr(secret)


def test_bytes_that_no_text_holds_are_left_as_they_are() -> None:
    data = bytes(range(0xF0, 0x100)) + b"\xf8" * 9 + b"\xfc" * 4
    masker = Masker(["hunter2"])
    assert masker.feed(data + b"hunter2\n") + masker.flush() == data + b"***\n"
