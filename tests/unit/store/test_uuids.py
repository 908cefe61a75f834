from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.store.database import _decode_uuid, _encode_uuid


@given(st.uuids())
def test_an_id_comes_back_as_it_was_written(value: uuid.UUID) -> None:
    assert _encode_uuid(str(value)) == _encode_uuid(value) == value.bytes
    assert _decode_uuid(value.bytes) == str(value)


@given(st.uuids(), st.sampled_from(["{%s}", "urn:uuid:%s"]))
def test_other_forms_of_an_id_are_taken(value: uuid.UUID, form: str) -> None:
    assert _encode_uuid(form % value) == _encode_uuid(str(value).upper()) == _encode_uuid(value.hex) == value.bytes


@pytest.mark.parametrize("value", ["", "x" * 36, "-" * 36, "00000000-0000-0000-0000-00000000000", "0" * 36, "0" * 31])
def test_what_is_no_id_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"hexadecimal|badly formed"):
        _encode_uuid(value)
