"""Hides secrets in a stream of bytes, whatever the borders of its pieces. `secret_forms` says what gives one away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from kici.agent.secret_forms import patterns

MASK = b"***"
DFA_BYTES = 100_000
"""Of all patterns: up to here the automaton that is three times as fast takes less than 30 MB."""
DECOYS = tuple(bytes([byte]) * 4 for byte in range(0xF8, 0xFD))
"""Patterns that no text holds and that are never hidden. With few patterns the library looks for their rarest bytes
first, which every hexadecimal number in a log brings up: 130 MB/s instead of 490. Beside these it does not try."""


class Secrets:
    """The values that every stream of one job hides. A value that is added counts from the next byte on."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._patterns: set[bytes] = set()
        self._automaton: BytesAhoCorasick | None = None
        self.longest = 0
        for value in values:
            self.add(value)

    def __repr__(self) -> str:
        return f"Secrets({len(self._patterns)} patterns)"

    def add(self, value: str) -> None:
        new = patterns(value) - self._patterns
        if new:
            self._patterns |= new
            self._automaton = None
            self.longest = max(self.longest, *map(len, new))

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Where secrets stand in `data`: start and end, overlapping ones too, by start."""
        if not self._patterns:
            return []
        if self._automaton is None:
            size = sum(map(len, self._patterns))
            self._automaton = BytesAhoCorasick(
                [*DECOYS, *sorted(self._patterns)],
                matchkind=MatchKind.Standard,
                implementation=Implementation.DFA if size <= DFA_BYTES else None,
            )
        matches = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return sorted((start, end) for pattern, start, end in matches if pattern >= len(DECOYS))

    def mask(self, text: str) -> str:
        """A whole text at once: an error message, a name."""
        masker = Masker(self)
        return (masker.feed(text.encode(errors="replace")) + masker.flush()).decode(errors="replace")

    def mask_all(self, value: Any) -> Any:
        """Every string and number inside a JSON-like value, keys too. A number that shows a secret becomes `***`."""
        match value:
            case str():
                return self.mask(value)
            case dict():
                return {self.mask_all(key): self.mask_all(item) for key, item in value.items()}
            case list() | tuple():
                return [self.mask_all(item) for item in value]
            case None | bool():
                return value
            case _:  # a number, whose digits may be a secret
                digits = str(value)
                return value if self.mask(digits) == digits else MASK.decode()


class Masker:
    """One stream. What it gives out in all does not depend on how the stream was cut into pieces.

    Up to `secrets.longest` − 1 bytes after the last newline are held back, because a secret may begin there.
    """

    def __init__(self, values: Secrets | Iterable[str]) -> None:
        self._secrets = values if isinstance(values, Secrets) else Secrets(values)
        self._held = b""
        self._masked = 0
        """How many of the held bytes belong to a secret whose mask is already out."""

    def add(self, value: str) -> None:
        self._secrets.add(value)

    def feed(self, data: bytes) -> bytes:
        held = self._held + data
        # A secret contains no newline and is at most `longest`: what begins before `safe` also ends in what we have.
        safe = max(held.rfind(b"\n") + 1, len(held) - self._secrets.longest + 1, 0)
        return self._give(held, min(safe, len(held)))

    def flush(self) -> bytes:
        """The end of the stream, or of what belongs together."""
        return self._give(self._held, len(self._held))

    def _give(self, held: bytes, safe: int) -> bytes:
        out: list[bytes] = []
        position = masked_until = self._masked
        for start, end in self._secrets.find(held):
            if start >= safe:
                break
            if start >= masked_until:
                out += (held[position:start], MASK)
            masked_until = position = max(masked_until, end)
        if position < safe:
            out.append(held[position:safe])
        self._held, self._masked = held[safe:], max(masked_until - safe, 0)
        return b"".join(out)
