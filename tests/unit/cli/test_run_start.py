from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from kici.cli.client import Client, ClientError, Refused
from kici.cli.run_start import start
from kici.wire.api import Delivery, DeliveryAnswer, RunStart, RunStarted

WANTED = RunStart("deploy")


def delivery(status: str, **more: object) -> DeliveryAnswer:
    fixed = Delivery("d", "k", "manual", None, "manual", status, 0, datetime.now(UTC), **more)  # type: ignore[arg-type]
    return DeliveryAnswer(fixed)


class Server:
    """Plays answers in their order, and keeps what was asked."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.keys: list[str] = []

    def post(self, path: str, body: object, answer: type, *, idempotency_key: str) -> object:
        assert (path, body) == ("/runs", WANTED)
        self.keys.append(idempotency_key)
        return self._next()

    def get(self, path: str, answer: type) -> object:
        assert path == "/event-log/d%2F1"
        return self._next()

    def _next(self) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def started(server: Server) -> str:
    ticks = iter(range(1000))
    return start(cast(Client, server), WANTED, pause=lambda seconds: None, clock=lambda: float(next(ticks)))


def test_the_run_may_be_there_at_once_or_later() -> None:
    assert started(Server(RunStarted("d/1", "r"))) == "r"
    assert started(Server(RunStarted("d/1"), delivery("received"), delivery("processed", run_ids=["r"]))) == "r"


def test_it_says_why_no_run_came() -> None:
    with pytest.raises(ClientError, match=r"no run was started \(lockfile_missing\): no lock file at main"):
        started(Server(RunStarted("d/1"), delivery("lockfile_missing", error_message="no lock file at main")))
    with pytest.raises(ClientError, match=r"no workflow of that name can be started by hand"):
        started(Server(RunStarted("d/1"), delivery("processed")))


def test_a_developer_who_may_not_read_deliveries_asks_again_with_the_same_key() -> None:
    server = Server(
        RunStarted("d/1"), Refused(403, "no"), RunStarted("d/1"), Refused(403, "no"), RunStarted("d/1", "r")
    )
    assert started(server) == "r"
    assert len(server.keys) == 3
    assert len(set(server.keys)) == 1


def test_patience_ends() -> None:
    with pytest.raises(ClientError, match=r"has not made the run in 60 s"):
        started(Server(RunStarted("d/1"), *[delivery("received")] * 100))
