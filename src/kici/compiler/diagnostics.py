"""What is wrong, where, and what to write instead."""

from __future__ import annotations

from msgspec import Struct


class Diagnostic(Struct, frozen=True, order=True):
    file: str
    """Relative to the repository's root, with `/`."""
    line: int
    """1-based; 0 = the file as a whole."""
    subject: str
    """The object's kind and name: `job 'build'`. Empty = the file."""
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.subject, self.message) if part)
