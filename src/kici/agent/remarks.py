"""What one step tells beside its log: annotations and a summary, within their limits, masked.

A text is masked before it is cut, or the cut could leave the beginning of a secret that nobody finds any more; and once
more when it leaves, for values that were to be hidden only later.
"""

from __future__ import annotations

from kici.agent.masking import Secrets
from kici.wire.agent import (
    ANNOTATION_LEVELS,
    MAX_ANNOTATION_CHARS,
    MAX_ANNOTATIONS,
    MAX_FILE_CHARS,
    MAX_SUMMARY_BYTES,
    Annotation,
)

_MAX_LINE = 2_147_483_647


class Remarks:
    """`annotate` and `summarize` return what the step's log is to say of something that was left out, at most once
    each; empty = nothing."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._annotations: list[Annotation] = []
        self._summary: list[str] = []
        self._size = 0
        self._annotations_full = False
        self._summary_full = False

    def annotate(self, level: str, message: str, file: str, line: int) -> str:
        """An unknown level counts as a notice."""
        if len(self._annotations) == MAX_ANNOTATIONS:
            told, self._annotations_full = self._annotations_full, True
            return "" if told else f"a step has up to {MAX_ANNOTATIONS} annotations: the others are left out"
        self._annotations.append(
            Annotation(
                level if level in ANNOTATION_LEVELS else "notice",
                self._secrets.mask(message)[:MAX_ANNOTATION_CHARS],
                self._secrets.mask(file)[:MAX_FILE_CHARS],
                min(max(line, 0), _MAX_LINE),
            )
        )
        return ""

    def summarize(self, markdown: str) -> str:
        """Pieces stand one after the other."""
        if self._summary_full:
            return ""
        masked = self._secrets.mask(markdown).encode()
        left = MAX_SUMMARY_BYTES - self._size
        self._summary_full = len(masked) > left
        self._size += min(len(masked), left)
        self._summary.append(masked[:left].decode(errors="ignore"))
        if not self._summary_full:
            return ""
        return f"the summary of a step has up to {MAX_SUMMARY_BYTES:,} bytes: the rest is left out"

    def annotations(self) -> tuple[Annotation, ...]:
        mask = self._secrets.mask
        return tuple(Annotation(one.level, mask(one.message), mask(one.file), one.line) for one in self._annotations)

    def summary(self) -> str:
        return self._secrets.mask("".join(self._summary))
