"""What an event is about: a commit of a repository whose workflows may want it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kici.engine.events import Event
from kici.forges.contract import Source
from kici.forges.git.errors import BadRemote
from kici.forges.git.remote import LOCAL_PREFIX, Remote


class Subject(Struct, frozen=True, kw_only=True):
    event: Event
    clone_url: str
    """As jobs get it: `/git/<name>` for a repository of our own."""
    provider: str
    routing_key: str
    """Of the source through which the repository is reached. Never that of a foreign source that sent the event."""
    triggered_by: str | None = None


class KnownSource(Protocol):
    @property
    def view(self) -> Source: ...

    @property
    def clone_token(self) -> str:
        """Empty = its repositories need none."""


class Sources(Protocol):
    """What the pipeline has to know of the configured sources."""

    def by_routing_key(self, routing_key: str) -> KnownSource | None:
        """From memory; None if it was removed, or is not known here yet."""

    async def load(self) -> None:
        """Returns when everything committed before the call is known."""


async def source_of(sources: Sources, routing_key: str) -> KnownSource | None:
    """None only if there is no such source any more."""
    if found := sources.by_routing_key(routing_key):
        return found
    await sources.load()
    return sources.by_routing_key(routing_key)


def clone_url(url: str, repo: str) -> str:
    """A delivery without a clone URL is about a repository that the orchestrator itself serves."""
    return url or f"{LOCAL_PREFIX}{repo}"


async def remote_of(sources: Sources, url: str, routing_key: str) -> Remote:
    """The repository with the credentials of the source through which it is reached.

    Raises `BadRemote` if that source was removed: without it nobody says that the repository may be read.
    """
    if url.startswith(LOCAL_PREFIX):
        return Remote(url)
    source = await source_of(sources, routing_key)
    if source is None:
        raise BadRemote(f"the source {routing_key}, through which the repository was reached, was removed")
    return Remote(url, password=source.clone_token)
