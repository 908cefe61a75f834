"""Titles as parts of a URL."""

import re
import unicodedata

__all__ = ["slug"]


def slug(title: str, *, max_length: int = 60) -> str:
    """Lower case, ASCII, words joined by hyphens; cut between words. A title without letters gives an empty string."""
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", ascii_only.lower())
    while len(words) > 1 and len("-".join(words)) > max_length:
        words.pop()
    return "-".join(words)[:max_length]
