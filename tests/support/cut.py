"""A TCP proxy whose cable can be pulled: bytes stop in both directions and no connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from tests.support.relay import Relay


class Cable(Relay):
    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._whole = asyncio.Event()
        self._whole.set()

    def pull(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        await super()._serve(reader, writer)

    async def _both(self, *ways: Coroutine[Any, Any, None]) -> None:
        """To the end of each: what is on its way arrives."""
        async with asyncio.TaskGroup() as group:
            for way in ways:
                group.create_task(way)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            writer.close()
