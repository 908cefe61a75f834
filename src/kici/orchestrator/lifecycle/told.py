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
