"""Tells other programs on this host where the orchestrator listens: `orchestrator.json` in the data directory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

log = structlog.get_logger(__name__)


class Address(Struct, frozen=True):
    url: str
    pid: int


class Announcement:
    """A service: the file is there from the first accepted connection until the orchestrator stops."""

    def __init__(self, listening: asyncio.Event, folder: Path, url: str) -> None:
        self._listening = listening
        self._path = folder / "orchestrator.json"
        self._address = Address(url, os.getpid())

    async def run(self) -> None:
        await self._listening.wait()
        self._write()
        log.info("ready", url=self._address.url)
        try:
            await asyncio.Event().wait()
        finally:
            self._remove()

    def _write(self) -> None:
        unfinished = self._path.with_suffix(f".{self._address.pid}")
        unfinished.write_bytes(msgspec.json.encode(self._address))
        unfinished.replace(self._path)

    def _remove(self) -> None:
        """Unless another orchestrator has taken the directory over."""
        try:
            if msgspec.json.decode(self._path.read_bytes(), type=Address) == self._address:
                self._path.unlink()
        except (OSError, msgspec.DecodeError) as error:
            log.info("the address file was not removed", error=str(error))
