from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.sdk.durations import LONGEST_MS, Duration, milliseconds

durations_ms = st.integers(1, LONGEST_MS)


@given(durations_ms)
def test_every_way_to_write_a_duration_means_the_same(ms: int) -> None:
    hours, rest = divmod(ms, 3_600_000)
    written: list[Duration] = [
        f"{ms}ms",
        f"{hours}h{rest}ms",
        f" {hours} h {rest} ms ",
        timedelta(milliseconds=ms),
        ms / 1_000,
    ]
    assert {milliseconds(value) for value in written} == {ms}


@given(st.one_of(st.text(), st.text("0123456789.smhd "), st.integers(), st.floats()))
def test_anything_is_a_duration_or_is_refused_with_a_sentence(value: str | float) -> None:
    found, said = None, ""
    try:
        found = milliseconds(value)
    except ValueError as error:
        said = str(error)
    assert "is not a duration" in said if found is None else 1 <= found <= LONGEST_MS


@pytest.mark.parametrize("value", [LONGEST_MS + 1, -LONGEST_MS])
def test_what_is_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="between a millisecond and a year"):
        milliseconds(timedelta(milliseconds=value))
