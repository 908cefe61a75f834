"""Bodies of the HTTP API between agents and the orchestrator: what is too large, or too early, for their socket."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import field

from kici.wire.api import Body


class CacheChecked(Body, frozen=True):
    damaged: bool
    """Its object is not what was saved, or not there: the entry was removed."""


class UploadBegin(Body, frozen=True):
    """Body of `POST /agent/jobs/{id}/uploads`."""

    kind: Literal["artifact", "cache"]
    name: str
    """Of the artifact, or the key of the cache entry."""


class UploadBegun(Body, frozen=True):
    upload_id: str = ""
    """Empty = there is none, for this `reason`: nothing is to be sent."""
    reason: str = ""
    part_bytes: int = 0
    """Of each part but the last, which may be shorter."""
    urls: list[str | None] = field(default_factory=list)
    """Of the first parts, as in `PartUrls`."""

    def __repr__(self) -> str:
        return f"UploadBegun({self.upload_id or self.reason})"


class PartRange(Body, frozen=True):
    """Body of `POST …/urls`."""

    first: int
    count: int


class PartUrls(Body, frozen=True):
    """May be fewer than were asked for."""

    urls: list[str | None]
    """Of each part: where it goes to with a plain PUT, or comes from with a GET, for some minutes, without further
    credentials; null: it goes to, or comes from, the orchestrator (`…/parts/{n}`)."""

    def __repr__(self) -> str:
        return f"PartUrls({len(self.urls)} urls)"


class UploadComplete(Body, frozen=True):
    """Body of `POST …/uploads/{id}/complete`."""

    size_bytes: int
    sha256: str
    """Of all parts together, in hexadecimal digits."""
    parts: int


class UploadDone(Body, frozen=True):
    kept: bool
    reason: str = ""
    """Why not, in words."""


class Download(Body, frozen=True):
    """What was found, and where its parts are; those after `urls` by `POST /agent/jobs/{id}/downloads/{entry}/urls`."""

    entry: str
    name: str
    """Of the artifact, or the key of the cache entry."""
    size_bytes: int
    sha256: str
    part_bytes: int
    urls: list[str | None]

    def __repr__(self) -> str:
        return f"Download({self.name!r}, {self.size_bytes} bytes)"


class Emit(Body, frozen=True):
    """Body of `POST /agent/jobs/{id}/events`."""

    name: str
    payload: Any = None
    key: str = ""
    """Of this event among those of the job, whatever its attempt."""


class Emitted(Body, frozen=True):
    event_id: str


class AgentCheck(Body, frozen=True):
    """What a hello with these values would meet, without one."""

    version: str
    protocol_min: int
    protocol_max: int
    token_prefix: str
    """Of the token that asked, to find it in the list."""
    labels: list[str] | None
    """That it grants beside the automatic ones. None = any."""
    refused_labels: list[str]
    """Among those asked about."""
    agent_id: str
    """`free`; `connected`: an agent with this id and token is there; `foreign`: one with another token is."""
    clock: datetime
    """The database's."""
    storage_problem: str = ""
    """Why artifacts and caches cannot be kept now. Empty = the object store answers."""
