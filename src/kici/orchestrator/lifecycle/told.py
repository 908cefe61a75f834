"""What a step tells beside its status, as it is stored: within the limits, whatever an agent sends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kici.orchestrator.store import storable
from kici.wire.agent import (
    ANNOTATION_LEVELS,
    MAX_ANNOTATION_CHARS,
    MAX_ANNOTATIONS,
    MAX_FILE_CHARS,
    MAX_SUMMARY_BYTES,
    Annotation,
)

_MAX_LINE = 2_147_483_647
_MAX_BYTES = 2**63 - 1
_MAX_WORD = 40
_MAX_LAST_LINES = 10_000


def within_limits(told: Sequence[Annotation]) -> tuple[Annotation, ...]:
    """An unknown level counts as a notice."""
    return tuple(
        Annotation(
            one.level if one.level in ANNOTATION_LEVELS else "notice",
            storable.text(one.message[:MAX_ANNOTATION_CHARS]),
            storable.text(one.file[:MAX_FILE_CHARS]),
            min(max(one.line, 0), _MAX_LINE),
        )
        for one in islice(told, MAX_ANNOTATIONS)
    )


def summary_within_limits(markdown: str) -> str:
    cut = markdown.encode(errors="replace")[:MAX_SUMMARY_BYTES].decode(errors="ignore")
    return storable.text(cut)


def word_within_limits(word: str) -> str:
    """Of a vocabulary that a newer agent may have more of."""
    return storable.text(word[:_MAX_WORD])


def lines_within_limits(lines: str) -> str:
    return storable.text(lines[:_MAX_LAST_LINES])


def code_within_limits(code: int | None) -> int | None:
    """None for a number that no system has as an exit code."""
    return code if code is not None and abs(code) <= _MAX_LINE else None


def bytes_within_limits(count: int | None) -> int | None:
    return None if count is None else min(max(count, 0), _MAX_BYTES)
