"""Mounts that something has left below a directory: they are taken away, never followed."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_LAZY, _NOFOLLOW = 2, 8
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_ROUNDS = 1_000
"""One mount may lie upon another."""


def below(directory: Path) -> list[Path]:
    """Mount points at `directory` (absolute) and below it, the last made first."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # no Linux
        return []
    # The kernel tells real paths; the last part may be a mount point, not a link.
    top = Path(os.path.realpath(directory.parent)) / directory.name
    points = [Path(os.fsdecode(_ESCAPE.sub(_plain, line.split(b" ")[4]))) for line in lines]
    return [point for point in reversed(points) if point.is_relative_to(top)]


def take_away(directory: Path) -> list[Path]:
    """Unmount everything at `directory` and below. Returns what is still mounted: the agent is not root, or less."""
    for _ in range(_ROUNDS):
        points = below(directory)
        if not sum(map(_unmount, points)):
            break
    return below(directory)


def _unmount(point: Path) -> bool:
    return bool(ctypes.CDLL(None).umount2(os.fsencode(point), _LAZY | _NOFOLLOW) == 0)


def _plain(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8)])
