"""What the caches in the work directory take, and when each was used: what eviction goes by."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def used_at(place: Path) -> float:
    """When its directory was last changed or touched, in seconds since 1970; 0 if it is gone."""
    try:
        return place.lstat().st_mtime
    except OSError:
        return 0.0


def size(place: Path) -> int:
    """Bytes that its files take; links are not followed."""
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total
