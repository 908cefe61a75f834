"""One mutation: a fence, a unique key, a compare-and-set or a rule of the lock order that is taken out."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

LIFECYCLE = "src/kici/orchestrator/lifecycle"
STORE = "src/kici/orchestrator/store"
MIGRATIONS = f"{STORE}/migrations/versions"


class Stale(Exception):
    """The mutation does not fit the code any more: somebody has to look at both."""


class Mutation(Struct, frozen=True):
    name: str
    """What is gone, as words with hyphens."""
    file: str
    old: str
    """Stands in the file exactly once."""
    new: str
    tests: tuple[str, ...]
    """Ids below `tests/` as pytest takes them. Together they must fail, and without the mutation they pass."""

    def apply(self, root: Path) -> None:
        path = root / self.file
        if not path.is_file():
            raise Stale(f"there is no {self.file}")
        text = path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise Stale(f"{self.file} has its text {found} times, not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))
