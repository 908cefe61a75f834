"""Where one job of a local run runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kici.agent.execution import Execution
from kici.agent.sandbox import slot_users
from kici.agent.sandbox.contract import Box, BoxSpec, Sandbox
from kici.cli.local.caches import Caches
from kici.cli.local.shelf import Shelf
from kici.cli.local.sink import Sink
from kici.cli.local.terminal import Hidden, Terminal
from kici.cli.local.working_copy import Copies
from kici.engine.lockfile import LockSandbox
from kici.errors import KiciError

if TYPE_CHECKING:
    from kici.cli.local.board import JobRecord

_SLOTS = 400
"""More than jobs ever run at once."""


class ImageBuilds:
    """Bubblewrap with the profile of image builds. That it cannot be had here is told when a job begins."""

    name = "bubblewrap"

    def machine(self) -> Mapping[str, str]:
        return os.environ

    def owner(self, slot: int) -> int | None:
        return slot_users.owner(slot)

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box:
        from kici.agent.sandbox.bubblewrap import Bubblewrap

        return await Bubblewrap("image-build").start(spec, runner_socket)


class Place(Struct):
    """A job's directory, and its runner, which starts while the directory is filled."""

    slot: int
    root: Path
    sink: Sink
    execution: Execution
    ready: asyncio.Task[None]
    filled: asyncio.Task[None] | None = None
    """A working copy is being made in it."""

    @property
    def src(self) -> Path:
        return self.root / "src"

    async def leave(self) -> None:
        self.ready.cancel()
        for task in (self.ready, self.filled):
            if task is not None:
                with suppress(asyncio.CancelledError, KiciError):
                    await task
        await self.execution.close()


class Places:
    """One place is made before anybody asks, so that the first job finds its runner started."""

    def __init__(self, base: Path, sandbox: Sandbox, terminal: Terminal, hidden: Hidden, caches: Caches) -> None:
        self._base = base
        self._sandbox = sandbox
        self._terminal = terminal
        self._hidden = hidden
        self._caches = caches
        self._numbers = itertools.count()
        self._spare: Place | None = self._make(sandbox)

    def fill_ahead(self, copies: Copies) -> None:
        """Begin with the copy that the first job most probably needs."""
        assert self._spare
        self._spare.filled = asyncio.create_task(asyncio.to_thread(copies.make, self._spare.src))

    def take(self, job: JobRecord, run_id: str) -> Place:
        if job.planned.job.sandbox is LockSandbox.IMAGE_BUILD and self._sandbox.name != "none":
            place = self._make(ImageBuilds())
        else:
            place, self._spare = self._spare or self._make(self._sandbox), None
        place.sink.job, place.sink.shelf = job, Shelf(self._base / "artifacts" / run_id)
        return place

    async def close(self) -> None:
        if self._spare is not None:
            await self._spare.leave()

    def _make(self, sandbox: Sandbox) -> Place:
        number = next(self._numbers)
        root = Path(tempfile.mkdtemp(prefix=f"job-{number}-", dir=self._base))
        for name in ("src", "kici", "packages", "tmp", "home"):
            (root / name).mkdir()
        sink = Sink(self._terminal, self._hidden, self._caches)
        execution = Execution(sandbox, BoxSpec(number % _SLOTS, root))
        return Place(number % _SLOTS, root, sink, execution, asyncio.create_task(execution.prepare()))
