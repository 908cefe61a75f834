"""What the agents' sockets need from other features; `app.py` passes it in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct

from kici.orchestrator.lifecycle.frames import Answer, SessionRef, StatusFrame
from kici.wire.agent import LogChunk


class Settings(Struct, frozen=True):
    """Seconds."""

    heartbeat_s: float = 5.0
    silent_s: float = 15.0
    recovery_s: float = 120.0
    ack_timeout_s: float = 10.0
    hello_s: float = 10.0


class TokenFacts(Protocol):
    """What an agent's token says."""

    @property
    def id(self) -> str: ...

    @property
    def labels(self) -> Collection[str] | None:
        """Labels that it grants beside the automatic ones; None = any."""


class Tokens(Protocol):
    async def agent(self, token: str) -> TokenFacts | None:
        """None: unknown, revoked or expired."""


class OwnLease(Protocol):
    """This coordinator's lease, as it may be relied on without asking the database."""

    def valid(self) -> bool: ...

    @property
    def since(self) -> object:
        """Another value after every gap."""


class Statuses(Protocol):
    def put(self, session: SessionRef, frame: StatusFrame, on_answer: Callable[[Answer], None]) -> None:
        """`on_answer` is told after the commit. Frames of one job are applied in the order of the calls."""


class Logs(Protocol):
    async def append(self, session_id: str, chunk: LogChunk) -> str | None:
        """None once the chunk is stored, else the reason for which it is refused."""
