from __future__ import annotations

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.logs import chunks


@given(st.binary(max_size=200), st.integers(1, 20))
def test_the_number_of_lines_stays_true_whatever_was_sent(text: bytes, count: int) -> None:
    assert len(chunks.lines(zstandard.ZstdCompressor().compress(text), count)) == count
    assert len(chunks.lines(text, count)) == count


def test_other_line_breaks_are_part_of_a_line() -> None:
    text = "a\rb\x0cc\u2028d\n\ne\n".encode()
    assert chunks.lines(zstandard.ZstdCompressor().compress(text), 3) == [text.split(b"\n")[0], b"", b"e"]
