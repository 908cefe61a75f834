"""What dispatch needs from other features; `app.py` passes it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct


class IdleAgent(Protocol):
    @property
    def session_id(self) -> str: ...

    @property
    def labels(self) -> frozenset[str]: ...

    @property
    def free(self) -> int:
        """Slots, at least one."""


class Agents(Protocol):
    """The agents whose sockets this coordinator has."""

    on_free: Callable[[], None]
    """Called when a slot may have become free."""

    def idle(self) -> Sequence[IdleAgent]: ...

    def offered(self) -> Sequence[frozenset[str]]:
        """The labels of each agent that takes jobs, idle or not."""

    def hold(self, session_id: str, job_id: str, attempt: int) -> bool:
        """The job takes up a slot from now on. False: the agent is gone."""

    def send(self, session_id: str, job_id: str, attempt: int, dispatch: bytes) -> bool:
        """The encoded frame of a dispatch. False: the agent is gone."""

    def release(self, session_id: str, job_id: str, attempt: int) -> None: ...


class Login(Struct, frozen=True):
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Login(username={self.username!r})"


class CloneLogins(Protocol):
    async def __call__(self, routing_key: str, clone_url: str) -> Login:
        """What a job needs to fetch its code. It may ask a secret store, so it may raise `Unavailable`."""


class Hears(Protocol):
    def subscribe(self, channel: str, callback: Callable[[set[str]], None]) -> None: ...
