"""A notifier that only keeps what it was told."""

from __future__ import annotations


class Told:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send(self, channel: str, key: str = "") -> None:
        self.sent.append((channel, key))
