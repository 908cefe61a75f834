"""What every object store promises.

An object appears whole or not at all: while `put` runs, and after a `put` that failed or whose process was killed,
readers see what was there before. A `put` that has returned is seen by every later `get`, of any coordinator.

Keys are made by `objects.keys`, never from what a user wrote; each method refuses other keys (`InvalidKey`), so that no
name leads out of the store. All methods may be called concurrently. A store that cannot be reached raises
`Unavailable`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import Literal, Protocol

from msgspec import Struct

from kici.orchestrator.errors import Conflict, Invalid, NotFound

Method = Literal["GET", "PUT"]
MAX_KEY = 1024
_SEGMENT = re.compile(r"[A-Za-z0-9._=-]{1,255}")


class InvalidKey(Invalid):
    code = "invalid_object_key"


class ObjectNotFound(NotFound):
    code = "object_not_found"


class ObjectExists(Conflict):
    code = "object_exists"


class Entry(Struct, frozen=True):
    key: str
    size: int
    """Bytes."""


class Objects(Protocol):
    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, create: bool = False, synced: bool = True
    ) -> None:
        """Store an object; one that is there is replaced, or with `create` left alone (`ObjectExists`).

        A large stream is not gathered in memory. What its iterator raises comes out, and nothing was stored. Not
        `synced`, it may be damaged if the store's power fails within a minute: for what readers compare with a digest.
        """

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFound`."""

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Stream the bytes from `start` (inclusive) to `end` (exclusive). Raises `ObjectNotFound` before the first."""

    async def size(self, key: str) -> int | None:
        """None: there is no such object."""

    async def delete(self, key: str) -> None:
        """One that is not there is no error."""

    def list(self, prefix: str) -> AsyncIterator[Entry]:
        """All objects below `prefix`, a key's first segments; in no order."""

    async def sign(self, method: Method, key: str, lasts: timedelta) -> str | None:
        """An address for this method and key alone, which works without credentials for so long; whoever has it can
        use it, and again: it belongs in no log. None: the store cannot be reached but by us."""

    async def sweep(self, older_than: timedelta = timedelta(days=1)) -> int:
        """Remove what killed uploads have left, which nobody can read, where only we can; how many files."""


def check_key(key: str) -> str:
    """The key itself, or `InvalidKey`."""
    if len(key) > MAX_KEY:
        raise InvalidKey(f"an object key may have {MAX_KEY} characters, this one has {len(key)}")
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
            raise InvalidKey(f"{key!r} is not an object key: {segment!r} is not allowed as one of its segments")
    return key
