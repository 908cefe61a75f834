"""Where one job of a local run runs, and who hears of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kici.agent.execution import Execution
from kici.agent.sandbox.contract import BoxSpec, Sandbox
from kici.cli.local.terminal import Hidden, JobLog, Terminal
from kici.cli.local.working_copy import Copies
from kici.errors import KiciError
from kici.wire.runner import StepEnded

if TYPE_CHECKING:
    from kici.cli.local.board import JobRecord

_PIECE_BYTES = 262_144
_SLOTS = 400
"""More than jobs ever run at once."""


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

    def __init__(self, base: Path, sandbox: Sandbox, terminal: Terminal, hidden: Hidden) -> None:
        self._base = base
        self._sandbox = sandbox
        self._terminal = terminal
        self._hidden = hidden
        self._shelf = Shelf(base / "artifacts")
        self._numbers = itertools.count()
        self._spare: Place | None = self._make()

    def fill_ahead(self, copies: Copies) -> None:
        """Begin with the copy that the first job most probably needs."""
        assert self._spare
        self._spare.filled = asyncio.create_task(asyncio.to_thread(copies.make, self._spare.src))

    def take(self, job: JobRecord) -> Place:
        place, self._spare = self._spare or self._make(), None
        place.sink.job = job
        return place

    async def close(self) -> None:
        if self._spare is not None:
            await self._spare.leave()

    def _make(self) -> Place:
        number = next(self._numbers)
        root = Path(tempfile.mkdtemp(prefix=f"job-{number}-", dir=self._base))
        for name in ("src", "kici", "tmp", "home"):
            (root / name).mkdir()
        sink = Sink(self._terminal, self._hidden, self._shelf)
        execution = Execution(self._sandbox, BoxSpec(number % _SLOTS, root), sink=sink)
        return Place(number % _SLOTS, root, sink, execution, asyncio.create_task(execution.prepare()))


class Sink:
    """What the runner tells goes to the record of the job and to the terminal."""

    job: JobRecord

    def __init__(self, terminal: Terminal, hidden: Hidden, shelf: Shelf) -> None:
        self._terminal = terminal
        self._hidden = hidden
        self._shelf = shelf
        self._log: JobLog | None = None

    async def step_started(self, index: int, attempt: int) -> None:
        step = self.job.steps[index]
        step.status, step.attempt = "running", attempt
        step.started = step.started or time.time()
        self._terminal.step_started(self.job, step)

    async def step_ended(self, ended: StepEnded) -> None:
        step = self.job.steps[ended.index]
        step.status, step.exit_code, step.error, step.ended = ended.status, ended.exit_code, ended.error, time.time()
        if self._log is not None:
            self._log.end()
        self._terminal.step_ended(self.job, step)

    async def output(self, index: int, data: bytes) -> None:
        if self._log is None:
            self._log = self._terminal.log(self.job)
        self._log.write(data)

    def mask(self, value: str) -> None:
        self._hidden.add(value)

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        await self._shelf.upload(name, data)

    def download(self, name: str) -> AsyncIterator[bytes]:
        return self._shelf.download(name)


class ArtifactRefused(KiciError):
    code = "artifact_refused"
    status = 409


class Shelf:
    """The artifacts of a local run: one file each, gone with the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        self._directory.mkdir(exist_ok=True)
        temporary = self._directory / f".{name}.{os.urandom(4).hex()}"
        with temporary.open("xb") as file:
            async for piece in data:
                file.write(piece)
        try:
            os.link(temporary, self._directory / name)
        except FileExistsError:
            raise ArtifactRefused(f"this run has an artifact {name!r} already: give it another name") from None
        finally:
            temporary.unlink()

    async def download(self, name: str) -> AsyncIterator[bytes]:
        try:
            file = (self._directory / name).open("rb")
        except FileNotFoundError:
            raise ArtifactRefused(f"no job of this run has uploaded an artifact {name!r}") from None
        with file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
