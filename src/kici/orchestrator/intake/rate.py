"""How often a source may deliver: so many times in any sixty seconds, per coordinator."""

from __future__ import annotations

import math
from collections import deque

_WINDOW_S = 60.0


class SlidingWindow:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._times: deque[float] = deque()

    def wait_s(self, now: float) -> int:
        """Count a delivery at `now` (a monotonic clock) and return 0, or the whole seconds until one is free."""
        while self._times and self._times[0] <= now - _WINDOW_S:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return max(1, math.ceil(self._times[0] + _WINDOW_S - now))
        self._times.append(now)
        return 0
