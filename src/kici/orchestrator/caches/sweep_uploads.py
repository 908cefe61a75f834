"""Removes what killed uploads left in an object store that is a directory. In a bucket a lifecycle rule does that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import structlog
from msgspec import Struct

from kici.orchestrator.pace import Pace

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    older_than: timedelta = timedelta(days=1)
    """No upload takes that long."""
    interval: timedelta = timedelta(hours=1)


class Pass(Struct, frozen=True):
    removed: int


class Sweeps(Protocol):
    async def sweep(self, older_than: timedelta) -> int: ...


class SweepUploads:
    """Runs on every coordinator: a directory belongs to a host."""

    def __init__(
        self, objects: Sweeps, settings: Settings, *, on_pass: Callable[[Pass], None] = lambda done: None
    ) -> None:
        self._objects = objects
        self._settings = settings
        self._on_pass = on_pass

    async def run(self) -> None:
        async for _ in Pace(self._settings.interval):
            self._on_pass(await self.run_once())

    async def run_once(self) -> Pass:
        removed = await self._objects.sweep(self._settings.older_than)
        if removed:
            log.info("removed what broken uploads left", files=removed)
        return Pass(removed)
