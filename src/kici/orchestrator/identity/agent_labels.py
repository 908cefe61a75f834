"""Which labels an agent may offer: those of its token, and those that every agent has by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kici.engine.labels import AUTOMATIC_PREFIXES

RESERVED = "kici:"
"""Labels of ours. The automatic ones tell what the agent is; no other may be claimed."""


def refused(allowed: Sequence[str] | None, offered: Iterable[str]) -> list[str]:
    """The labels that an agent may not offer with a token that allows `allowed` (None = any), sorted."""
    return sorted(label for label in set(offered) if not _may_offer(allowed, label))


def _may_offer(allowed: Sequence[str] | None, label: str) -> bool:
    if label.startswith(tuple(AUTOMATIC_PREFIXES)):
        return True
    if allowed is None:
        return not label.startswith(RESERVED)
    return label in allowed
