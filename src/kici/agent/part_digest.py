"""The SHA-256 of what goes by in parts, computed in a thread beside the network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence


class PartDigest:
    """`close` at the end, always."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._adding: asyncio.Task[None] | None = None

    async def add(self, part: Sequence[bytes | bytearray]) -> None:
        """The next part, which must not change any more. Waits for the one before."""
        await self.close()
        self._adding = asyncio.create_task(asyncio.to_thread(self._add, part))

    async def hexdigest(self) -> str:
        """Of all that was added."""
        await self.close()
        return self._digest.hexdigest()

    async def close(self) -> None:
        if self._adding is not None:
            await self._adding

    def _add(self, part: Sequence[bytes | bytearray]) -> None:
        for piece in part:
            self._digest.update(piece)
