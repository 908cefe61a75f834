"""Byte credits for log chunks: how much each agent may have on its way, so that all of them together stay bounded.

A socket is always read, or a heartbeat would wait behind logs. So a slow database must slow the agents that write logs
before they send: whatever they sent stands in this process until it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kici.wire.agent import LOG_WINDOW_BYTES, MAX_LOG_WINDOW_BYTES, LogWindow

BUDGET_BYTES: Final = 64 * 1024 * 1024
"""Of all agents of one coordinator together. Kept up to 1,024 slots; beyond, each slot has the smallest window."""


class LogWindows:
    """One window for every job of every agent, a power of two: few messages, however many agents come and go."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget = budget_bytes
        self._slots = 0
        self._agents: set[Callable[[LogWindow], None]] = set()
        self.bytes = MAX_LOG_WINDOW_BYTES
        """What one job may have unacknowledged now."""

    @contextmanager
    def open(self, slots: int, tell: Callable[[LogWindow], None]) -> Iterator[None]:
        """While an agent is connected: it is told its window at once and whenever that changes."""
        self._agents.add(tell)
        self._count(slots)
        tell(LogWindow(self.bytes))
        try:
            yield
        finally:
            self._agents.discard(tell)
            self._count(-slots)

    def _count(self, slots: int) -> None:
        self._slots += slots
        window = self.bytes
        while window > LOG_WINDOW_BYTES and window * self._slots > self._budget:
            window //= 2
        # Not at once when it would just fit: an agent that comes and goes must not make a message to all of them.
        while window < MAX_LOG_WINDOW_BYTES and 3 * window * self._slots <= self._budget:
            window *= 2
        if window != self.bytes:
            self.bytes = window
            for tell in self._agents:
                tell(LogWindow(window))
