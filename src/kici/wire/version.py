"""Which protocol versions this build speaks. Coordinators and agents of release N work with N-1."""

from __future__ import annotations

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


def agree(peer_min: int, peer_max: int) -> int | None:
    """The highest version that both speak, or None."""
    best = min(PROTOCOL_MAX, peer_max)
    return best if best >= max(PROTOCOL_MIN, peer_min) else None
