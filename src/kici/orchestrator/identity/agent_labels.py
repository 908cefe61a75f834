"""Which labels an agent may offer: those of its token, and those that every agent has by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kici.engine.labels import AUTOMATIC_PREFIXES, foreign

RESERVED = "kici:"
"""Labels of ours. The automatic ones tell what the agent is; another one only comes with a token that names it."""


def refused(allowed: Collection[str] | None, offered: Sequence[str]) -> list[str]:
    """The labels that an agent may not offer with a token that allows `allowed` (None = any), sorted."""
    reserved = {
        label
        for label in offered
        if label.startswith(RESERVED) and not label.startswith(AUTOMATIC_PREFIXES) and label not in (allowed or ())
    }
    return sorted({*foreign(offered, allowed), *reserved})
