"""Since when the orchestrator may believe that this agent is gone.

Only what it has acknowledged proves that it knew of us, and then no earlier than when we sent it: the count starts at
the sending of the last acknowledged heartbeat, by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_CHECK_S = 1.0
"""A machine that was suspended must notice when it wakes: sleeping does not count that time."""


def _since_boot() -> float:
    """Monotonic, and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Silence:
    def __init__(
        self, clock: Callable[[], float] = _since_boot, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self._sent: dict[int, float] = {}
        self._last_number = 0
        self.known_at = float("-inf")
        """When the last acknowledged heartbeat was sent."""

    def sending(self) -> int:
        """A heartbeat is about to be sent. Returns its number."""
        self._last_number += 1
        self._sent[self._last_number] = self.clock()
        return self._last_number

    def acknowledged(self, number: int) -> None:
        sent_at = self._sent.get(number)
        if sent_at is not None:
            self.known_at = max(self.known_at, sent_at)
            self._sent = {other: at for other, at in self._sent.items() if other > number}

    def left(self, limit_s: float, accepted_at: float) -> float:
        """Seconds until an attempt must be dead whose acceptance was sent at `accepted_at` and then acknowledged."""
        return max(self.known_at, accepted_at) + limit_s - self.clock()

    async def exceeds(self, limit_s: float, accepted_at: float) -> None:
        """Return when nothing is left."""
        while (left := self.left(limit_s, accepted_at)) > 0:
            await self._sleep(min(left, _CHECK_S))
