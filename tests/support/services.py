"""Running services inside a test: started, under a deadline, and gone afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol


class Service(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def running(*services: Service, seconds: float = 20) -> AsyncIterator[None]:
    """The services run inside the block, which may take `seconds`; one that fails meanwhile fails the test."""
    tasks = [asyncio.create_task(service.run()) for service in services]
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 20) -> None:
    """Ask again and again until it is so, for what tells nobody when it happens."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)
