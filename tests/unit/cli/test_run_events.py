from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import msgspec
import pytest

from kici.cli.client import Client, Refused, Unreachable
from kici.cli.run_events import follow
from kici.wire.api import LogLines, StreamEnd

END = StreamEnd("r", "success", logs_complete=True)


def lines(first: int, *text: str, step: int = 0, attempt: int = 1) -> LogLines:
    return LogLines("j", "build", step, "compile", first, list(text), attempt)


class Server:
    """Plays one connection after the other: events, and how it ends."""

    def __init__(self, *connections: list[object]) -> None:
        self._connections = list(connections)

    @contextmanager
    def events(self, path: str, query: object = None) -> Iterator[Iterator[tuple[str, bytes]]]:
        yield self._play(self._connections.pop(0))

    def _play(self, connection: list[object]) -> Iterator[tuple[str, bytes]]:
        for event in connection:
            if isinstance(event, Exception):
                raise event
            yield ("end" if isinstance(event, StreamEnd) else "log", msgspec.json.encode(event))


def followed(server: Server, now: Iterator[float] | None = None) -> list[object]:
    clock = (lambda: next(now)) if now else (lambda: 0.0)
    return list(follow(cast(Client, server), "r", logs=True, pause=lambda seconds: None, clock=clock))


def test_every_line_comes_once_across_lost_connections() -> None:
    server = Server(
        [lines(0, "a", "b"), lines(0, "x", step=1), Unreachable("gone")],
        [Refused(503, "starting")],
        [lines(0, "a", "b", "c"), lines(3, "d")],
        [lines(0, "a"), lines(1, "b", "c", "d"), lines(0, "x", step=1), lines(0, "again", attempt=2), END],
    )
    assert followed(server) == [
        lines(0, "a", "b"),
        lines(0, "x", step=1),
        lines(2, "c"),
        lines(3, "d"),
        lines(0, "again", attempt=2),
        END,
    ]


def test_a_refusal_ends_it_at_once() -> None:
    with pytest.raises(Refused):
        followed(Server([Refused(404, "no such run")]))


def test_patience_ends() -> None:
    with pytest.raises(Unreachable):
        followed(Server([Unreachable("a")], [Unreachable("b")], [Unreachable("c")]), iter([0.0, 30.0, 59.0, 61.0]))
