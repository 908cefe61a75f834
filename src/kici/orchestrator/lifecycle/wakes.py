"""Whom to wake once a transaction has committed. A wake-up carries no meaning: who misses it finds the same by
polling."""

from __future__ import annotations

from typing import Protocol

from kici.orchestrator.store import notify


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


class Counter(Protocol):
    def inc(self, amount: float = 1) -> None: ...


class Wakes:
    def __init__(self) -> None:
        self._counts: dict[Counter, int] = {}
        self.queue = False
        """Some job may be claimed now."""
        self.new_rows = False
        """The same of jobs at the end of their lanes, which are looked for at less cost."""
        self.runs: set[str] = set()
        """Runs in which something changed."""
        self.sessions: set[str] = set()
        """Sessions of agents that have something to cancel, or are over."""
        self.events = False
        """There is a new event in the log."""
        self.outbox: set[str] = set()
        """Kinds of outbox rows."""

    def count(self, counter: Counter, amount: int = 1) -> None:
        """Count it after the commit: what is rolled back has not happened."""
        self._counts[counter] = self._counts.get(counter, 0) + amount

    def send(self, notifier: Notifies) -> None:
        """To be called after the commit."""
        for counter, amount in self._counts.items():
            counter.inc(amount)
        if self.queue:
            notifier.send(notify.QUEUE)
        elif self.new_rows:
            notifier.send(notify.QUEUE, notify.NEW_ROWS)
        for run_id in sorted(self.runs):
            notifier.send(notify.RUNS, run_id)
        for session_id in sorted(self.sessions):
            notifier.send(notify.CANCEL, session_id)
        if self.events:
            notifier.send(notify.EVENTS)
        for kind in sorted(self.outbox):
            notifier.send(notify.OUTBOX, kind)
