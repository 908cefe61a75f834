"""How many jobs run side by side. A slot is free again once the job before it has left nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    def __init__(self, count: int) -> None:
        self.count = count
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for number in range(count):
            self._free.put_nowait(number)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[int]:
        number = await self._free.get()
        try:
            yield number
        finally:
            self._free.put_nowait(number)
