"""Who hears of one job of a local run: its record, and the terminal."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from kici.cli.local.caches import Caches
from kici.cli.local.shelf import Shelf
from kici.cli.local.terminal import Hidden, JobLog, Terminal
from kici.wire.runner import StepEnded

if TYPE_CHECKING:
    from kici.agent.remarks import Remarks
    from kici.cli.local.board import JobRecord


class Sink:
    """What the runner tells goes to the record of the job and to the terminal."""

    job: JobRecord
    shelf: Shelf
    """Of the job's run."""

    def __init__(self, terminal: Terminal, hidden: Hidden, caches: Caches) -> None:
        self._terminal = terminal
        self._hidden = hidden
        self._caches = caches
        self._logs: dict[int, JobLog] = {}
        self._remarks: dict[int, Remarks] = {}
        self._events: dict[str, str] = {}
        """Key → id."""
        self.secret_outputs: dict[str, str] = {}

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def step_started(self, index: int, attempt: int) -> None:
        step = self.job.steps[index]
        step.status, step.attempt = "running", attempt
        step.started = step.started or time.time()
        self._terminal.step_started(self.job, step)

    async def step_ended(self, ended: StepEnded) -> None:
        step = self.job.steps[ended.index]
        step.status, step.exit_code, step.error, step.ended = ended.status, ended.exit_code, ended.error, time.time()
        step.reason, step.signal, step.last_lines = ended.reason, ended.signal, ended.last_lines
        step.peak_memory_bytes = ended.peak_memory_bytes
        if ended.index in self._logs:
            self._logs.pop(ended.index).end()
        remarks = self._remarks.pop(ended.index, None)
        if remarks is not None and ended.final:
            step.annotations, step.summary = remarks.annotations(), remarks.summary()
        self._terminal.step_ended(self.job, step)

    async def output(self, index: int, data: bytes) -> None:
        if index not in self._logs:
            self._logs[index] = self._terminal.log(self.job, self._beside_others(index))
        self._logs[index].write(data)

    def hide(self, text: str) -> str:
        return str(self._hidden.clean(text))

    def mask(self, value: str) -> None:
        self._hidden.add(value)

    def annotated(self, index: int, level: str, message: str, file: str, line: int) -> None:
        self._left_out(index, self._remarks_of(index).annotate(level, message, file, line))

    def summarized(self, index: int, markdown: str) -> None:
        self._left_out(index, self._remarks_of(index).summarize(markdown))

    # ── what steps hand over ─────────────────────────────────────────────────────────────────────────────────────────

    async def secret_output(self, name: str, value: str) -> None:
        self._hidden.add(value)
        self.secret_outputs[name] = value

    async def emit(self, name: str, payload: Any, key: str) -> str:
        if key not in self._events:
            self._events[key] = f"local-{secrets.token_hex(8)}"
            self._terminal.told(self.job, f"emitted {name} as {self._events[key]}; a local run starts nothing with it")
        return self._events[key]

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        await self.shelf.upload(name, data)

    def download(self, name: str) -> AsyncGenerator[bytes, None]:
        return self.shelf.download(name)

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
        return await self._caches.fetch(key, restore)

    async def cache_save(self, key: str, data: AsyncIterator[bytes]) -> None:
        await self._caches.save(key, data)

    def _beside_others(self, index: int) -> str:
        """Name of a step of a parallel group, whose lines mix with those of others."""
        groups = self.job.planned.job.parallel
        found = any(group.first <= index < group.first + group.size for group in groups)
        return self.job.steps[index].name if found else ""

    def _remarks_of(self, index: int) -> Remarks:
        if index not in self._remarks:
            from kici.agent.remarks import Remarks  # late: few runs have any

            self._remarks[index] = Remarks(self._hidden.secrets())
        return self._remarks[index]

    def _left_out(self, index: int, what: str) -> None:
        if what:
            self._terminal.told(self.job, f"{self.job.steps[index].name}: {what}")
