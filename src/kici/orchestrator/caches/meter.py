"""Passes a stream on, measures and hashes it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator


class OverLimit(Exception):
    """More came than may be kept."""


class Meter:
    def __init__(self, data: AsyncIterable[bytes], limit: int) -> None:
        self._data = data
        self._limit = limit
        self.size = 0
        self.digest = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._data:
            self.size += len(piece)
            if self.size > self._limit:
                raise OverLimit
            self.digest.update(piece)
            yield piece
