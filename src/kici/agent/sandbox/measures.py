"""What the processes of control groups have used: read from the groups' files, kept after the groups are gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kici.agent.sandbox.contract import Usage


class Measures:
    """Of the directories of one group, one for each hierarchy. The two versions have other names for the same."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._memory_stat = _first(directories, "memory.stat")
        self._highest = _first(directories, "memory.peak", "memory.max_usage_in_bytes")
        self._kills_in = _first(directories, "memory.events", "memory.oom_control")
        self._refusals_in = _first(directories, "pids.events")
        self._peak: int | None = None
        self._kills: int | None = None
        self._refused: int | None = None
        self.count()

    def sample(self) -> None:
        """The kernel keeps a peak, but with the page cache in it: of memory the highest sample counts, which the kernel
        brings up to date within 2 s. What lives shorter may be missed."""
        found = _table(self._memory_stat)
        self._keep_peak(found.get("total_rss", found.get("anon")))
        self.count()

    def count(self) -> None:
        """What the kernel counts by itself."""
        kills = _table(self._kills_in).get("oom_kill")
        if kills is not None:
            self._kills = max(kills, self._kills or 0)
            if kills:
                # At that moment there was no page cache left to take away: the kernel's peak is the processes' own.
                self._keep_peak(_number(self._highest))
        refused = _table(self._refusals_in).get("max")
        if refused is not None:
            self._refused = max(refused, self._refused or 0)

    def usage(self) -> Usage:
        return Usage(self._peak, self._kills, self._refused)

    def _keep_peak(self, value: int | None) -> None:
        if value is not None:
            self._peak = max(value, self._peak or 0)


def _first(directories: Sequence[Path], *names: str) -> Path | None:
    return next((path for name in names for one in directories if (path := one / name).exists()), None)


def _table(path: Path | None) -> dict[str, int]:
    """Of lines `name number`. Empty once the group is removed."""
    try:
        lines = path.read_text().splitlines() if path else []
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path | None) -> int | None:
    try:
        return int(path.read_text()) if path else None
    except (OSError, ValueError):
        return None
