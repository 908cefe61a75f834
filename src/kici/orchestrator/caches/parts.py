"""The bytes of an entry lie in parts: objects `<key>/<n>` from 0, each but the last of exactly `part_bytes`.

A part is one plain PUT of a known length: it can be sent again alone, whoever holds a signed address can send it, and
what a killed sender leaves is objects that a row knows. Entries of versions before parts are one object at `<key>`;
they are read through the orchestrator as if they had parts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import timedelta
from typing import Final, Protocol

from kici.orchestrator.caches import metrics
from kici.orchestrator.errors import Invalid, TooLarge, Unavailable
from kici.orchestrator.objects import keys
from kici.orchestrator.objects.contract import Method, ObjectNotFound, Objects

PART_BYTES: Final = 8 * 1024 * 1024
URLS_AT_ONCE: Final = 16
URLS_AT_FIRST: Final = 4
"""When an upload begins, whose size nobody knows."""
URL_LASTS: Final = timedelta(minutes=15)
"""A signed address; whoever needs longer asks for another one."""
PART_LASTS: Final = timedelta(minutes=10)
"""One part that is sent through here."""
STALE_AFTER: Final = timedelta(hours=1)
"""By then nobody writes to a session that is over: no address is valid any more, and no request goes on."""
_IN_MEMORY: Final = 32
"""Parts that are on their way through here at the same time, each whole in memory unless the store is a directory."""
_DELETIONS_AT_ONCE: Final = 16


class Stored(Protocol):
    @property
    def object_key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def part_bytes(self) -> int | None:
        """None: one object."""


def step_of(stored: Stored) -> int:
    """Bytes of a part, whatever it lies in."""
    return stored.part_bytes or PART_BYTES


def count(size: int, part_bytes: int) -> int:
    """How many parts `size` bytes have."""
    return -(-size // part_bytes)


def length(stored: Stored, number: int) -> int:
    step = step_of(stored)
    return min(step, stored.size_bytes - number * step)


class Parts:
    """`direct`: who sends or reads a part is given a signed address where the store can make one."""

    def __init__(self, objects: Objects, *, direct: bool = False) -> None:
        self._objects = objects
        self._direct = direct
        self._room = asyncio.Semaphore(_IN_MEMORY)

    # ── on the way ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def urls(self, method: Method, object_key: str, numbers: Sequence[int]) -> list[str | None]:
        """Of each part its signed address, or None: it goes through the orchestrator. They are secrets."""
        if not self._direct:
            return [None] * len(numbers)
        found = [await self._objects.sign(method, keys.part(object_key, number), URL_LASTS) for number in numbers]
        metrics.PARTS.labels("up" if method == "PUT" else "down", "direct").inc(len([url for url in found if url]))
        return found

    async def addresses(self, stored: Stored, first: int, most: int) -> list[str | None]:
        """Of the parts of an entry from `first`, as many as there are and are given at once."""
        numbers = range(first, min(first + min(most, URLS_AT_ONCE), count(stored.size_bytes, step_of(stored))))
        if stored.part_bytes is None:
            return [None] * len(numbers)
        return await self.urls("GET", stored.object_key, numbers)

    async def put(self, object_key: str, number: int, data: AsyncIterable[bytes], limit: int) -> None:
        """Store one part of up to `limit` bytes. Raises `TooLarge` or `Unavailable`."""
        try:
            async with self._room, asyncio.timeout(PART_LASTS.total_seconds()):
                # Not synced: as long as a copy would take again, and what is damaged differs from its SHA-256.
                await self._objects.put(keys.part(object_key, number), _up_to(limit, number, data), synced=False)
        except TimeoutError:
            raise Unavailable(f"part {number} did not come within {PART_LASTS}: send it again") from None
        metrics.PARTS.labels("up", "through").inc()

    def read_part(self, stored: Stored, number: int) -> AsyncIterator[bytes]:
        """Raises `ObjectNotFound`; what comes may have another length than it should."""
        if stored.part_bytes is None:
            start = number * PART_BYTES
            return self._objects.read(stored.object_key, start=start, end=start + length(stored, number))
        return self._objects.read(keys.part(stored.object_key, number))

    # ── at rest ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, stored: Stored) -> AsyncIterator[bytes]:
        """All of it. Raises `ObjectNotFound`, at the latest where a part is missing."""
        if stored.part_bytes is None:
            async for piece in self._objects.read(stored.object_key):
                yield piece
            return
        for number in range(count(stored.size_bytes, stored.part_bytes)):
            async for piece in self.read_part(stored, number):
                yield piece

    async def begins(self, stored: Stored) -> bool:
        """Whether its first object is there."""
        if stored.part_bytes is None:
            return await self._objects.size(stored.object_key) is not None
        return stored.size_bytes == 0 or await self._objects.size(keys.part(stored.object_key, 0)) is not None

    async def is_sound(self, stored: Stored, sha256: str) -> bool:
        """Whether readers get what was saved. Reads it all. Raises `Unavailable`."""
        digest = hashlib.sha256()
        for number in range(count(stored.size_bytes, step_of(stored))):
            size = 0
            try:
                async for piece in self.read_part(stored, number):
                    digest.update(piece)
                    size += len(piece)
                    if size > length(stored, number):
                        return False
            except ObjectNotFound:
                return False
            if size < length(stored, number):
                return False
        if stored.part_bytes is None and await self._objects.size(stored.object_key) != stored.size_bytes:
            return False
        return digest.hexdigest() == sha256

    async def check(self, object_key: str, size: int, part_bytes: int) -> None:
        """Raises `Invalid` unless exactly the parts of `size` bytes are there, each of its length."""
        there = {entry.key: entry.size async for entry in self._objects.list(object_key)}
        for number in range(count(size, part_bytes)):
            expected = min(part_bytes, size - number * part_bytes)
            found = there.get(keys.part(object_key, number))
            if found != expected:
                state = "is missing" if found is None else f"has {found:,} bytes"
                raise Invalid(f"part {number} {state} of {expected:,} bytes: send it again")

    async def remove(self, object_key: str, part_bytes: int | None) -> None:
        """All objects of an entry or session, also such as should not be there. Raises `Unavailable`."""
        if part_bytes is None:
            await self._objects.delete(object_key)
            return
        going = [entry.key async for entry in self._objects.list(object_key)]
        for at in range(0, len(going), _DELETIONS_AT_ONCE):
            await asyncio.gather(*(self._objects.delete(key) for key in going[at : at + _DELETIONS_AT_ONCE]))


async def _up_to(limit: int, number: int, data: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for piece in data:
        size += len(piece)
        if size > limit:
            raise TooLarge(f"part {number} has more than {limit:,} bytes")
        yield piece
