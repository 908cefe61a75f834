"""The word that somebody most likely meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: object, known: Iterable[str]) -> str:
    """` (did you mean 'opened'?)`, or nothing if no known word is near."""
    from difflib import get_close_matches  # late: only mistakes need it

    found = get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
