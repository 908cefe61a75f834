"""What a local run shows: lines of all jobs as they come, each with its job in front; nothing secret."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

from kici.cli.local.progress import REFRESH_S, Progress
from kici.cli.run_tree import duration

if TYPE_CHECKING:
    from kici.agent import masking
    from kici.cli.local.board import JobRecord, StepRecord

_LINE_BYTES = 65_536
_MARKS = {"success": "✓", "failed": "✗", "cancelled": "⊘", "skipped": "−"}


class Hidden:
    """The agent's masking, loaded only where there is something to hide."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.masking: masking.Secrets | None = None
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        self.secrets().add(value)

    def secrets(self) -> masking.Secrets:
        """Those that are hidden now and will be."""
        if self.masking is None:
            from kici.agent.masking import Secrets

            self.masking = Secrets()
        return self.masking

    def clean(self, value: Any) -> Any:
        """A text, or a JSON-like value, without its secrets."""
        return value if self.masking is None else self.masking.mask_all(value)

    def stream(self) -> masking.Masker | None:
        """For one stream; None while nothing is to be hidden."""
        if self.masking is None:
            return None
        from kici.agent.masking import Masker

        return Masker(self.masking)


class Terminal:
    """`quiet`: nothing but what `say` is given."""

    def __init__(self, hidden: Hidden, out: BinaryIO | None = None, *, quiet: bool = False) -> None:
        self._hidden = hidden
        self._progress = Progress(out or sys.stdout.buffer, live=False if quiet else None)
        self._quiet = quiet
        self._width = 0

    def expect(self, names: Iterable[str]) -> None:
        """The names of the jobs that will write: their lines stand below each other."""
        self._width = max((len(name) for name in names), default=0)

    def log(self, job: JobRecord, step: str = "") -> JobLog:
        """With the name of the step in front of each line, if it is given."""
        shown = self._hidden.clean(step).encode(errors="replace") + b": " if step else b""
        return JobLog(self._hidden, lambda line: self._line(job.name, shown + line))

    async def show_progress(self) -> None:
        """Until cancelled: what goes on although nobody says anything."""
        while not self._quiet:
            await asyncio.sleep(REFRESH_S)
            self._progress.tick()

    def close(self) -> None:
        self._progress.close()

    def step_started(self, job: JobRecord, step: StepRecord) -> None:
        self._progress.started(job.name, self._hidden.clean(step.name))
        again = f" (attempt {step.attempt})" if step.attempt > 1 else ""
        self._mark(job.name, "▸", f"{step.name}{again}")

    def step_ended(self, job: JobRecord, step: StepRecord) -> None:
        if not step.started:
            if step.error:  # without one it is a hook of another ending: not worth a line
                self._mark(job.name, _MARKS.get(step.status, "?"), f"{step.name}  {step.status}: {step.error}")
            return
        self._progress.ended(job.name)
        took = duration(round((step.ended - step.started) * 1000))
        allowed = " (allowed to fail)" if step.status == "failed" and step.continue_on_error else ""
        word = "skipped: " if step.status == "skipped" else ""
        why = f"  {word}{step.error}" if step.error else ""
        self._mark(job.name, _MARKS.get(step.status, "?"), f"{step.name}  {took}{allowed}{why}")

    def job_ended(self, job: JobRecord) -> None:
        """For jobs that never started: nothing else is shown of them."""
        self._mark(job.name, _MARKS.get(job.status.value, "?"), f"{job.status.value}: {job.error}")

    def told(self, job: JobRecord, text: str) -> None:
        """A remark about a job that is none of its output."""
        self._mark(job.name, "·", text)

    def say(self, text: str) -> None:
        self._progress.write(text.encode(errors="replace") + b"\n")

    def _mark(self, job: str, mark: str, text: str) -> None:
        self._line(job, f"{mark} {self._hidden.clean(text)}".encode(errors="replace"), " ")

    def _line(self, job: str, text: bytes, border: str = "│") -> None:
        if not self._quiet:
            self._progress.write(f"{job:<{self._width}} {border} ".encode(errors="replace") + text + b"\n")


class JobLog:
    """The output of one step, masked, in whole lines. A very long line is cut."""

    def __init__(self, hidden: Hidden, line: Callable[[bytes], None]) -> None:
        self._hidden = hidden
        self._line = line
        self._masker: masking.Masker | None = None
        self._unfinished = b""

    def write(self, data: bytes) -> None:
        self._masker = self._masker or self._hidden.stream()
        self._take(self._masker.feed(data) if self._masker else data)

    def end(self) -> None:
        """Of a step: what stands there without a newline is a line."""
        if self._masker:
            self._take(self._masker.flush())
        if self._unfinished:
            self._take(b"\n")

    def _take(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        while len(self._unfinished) > _LINE_BYTES:
            lines.append(self._unfinished[:_LINE_BYTES])
            self._unfinished = self._unfinished[_LINE_BYTES:]
        for line in lines:
            self._line(line)
