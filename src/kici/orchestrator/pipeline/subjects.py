"""What an event is about: a commit of a repository whose workflows may want it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kici.engine.events import Event
from kici.forges.contract import Source
from kici.forges.git.remote import LOCAL_PREFIX, Remote


class Subject(Struct, frozen=True, kw_only=True):
    event: Event
    clone_url: str
    """As jobs get it: `/git/<name>` for a repository of our own."""
    provider: str
    routing_key: str
    """Of the source through which the repository is reached. Never that of a foreign source that sent the event."""
    triggered_by: str | None = None


class Sources(Protocol):
    """What the pipeline has to know of the configured sources."""

    async def find(self, routing_key: str) -> Source | None:
        """None if it was removed."""

    async def clone_credentials(self, routing_key: str) -> tuple[str, str]:
        """User name and password for the source's repositories; empty ones where no credentials are needed."""


def clone_url(url: str, repo: str) -> str:
    """A delivery without a clone URL is about a repository that the orchestrator itself serves."""
    return url or f"{LOCAL_PREFIX}{repo}"


async def remote_of(sources: Sources, url: str, routing_key: str) -> Remote:
    if url.startswith(LOCAL_PREFIX):
        return Remote(url)
    username, password = await sources.clone_credentials(routing_key)
    return Remote(url, username, password)
