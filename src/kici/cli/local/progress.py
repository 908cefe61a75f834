"""What is running now: lines at the bottom of a terminal, rewritten; in a log a line when nothing else was said."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import BinaryIO

from kici.cli.run_tree import duration

SILENCE_S = 60.0
"""After so long without a line a log gets one that says what goes on."""
REFRESH_S = 1.0
_MAX_LINES = 6
_DIM, _PLAIN, _CLEAR_BELOW = "\x1b[2m", "\x1b[0m", "\x1b[J"


class Progress:
    """Every write of the run goes through `write`, so that the lines at the bottom are taken away before it."""

    def __init__(self, out: BinaryIO, *, live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._live = _is_terminal(out) if live is None else live
        self._clock = clock
        self._running: dict[str, tuple[str, float]] = {}
        self._shown = 0
        self._spoke = clock()

    def write(self, data: bytes) -> None:
        self._erase()
        self._out.write(data)
        self._spoke = self._clock()
        self._draw()
        self._out.flush()

    def started(self, job: str, step: str) -> None:
        self._running[job] = (step, self._clock())

    def ended(self, job: str) -> None:
        self._running.pop(job, None)

    def tick(self) -> None:
        """Time has passed: `REFRESH_S`, or more."""
        if self._live:
            self._erase()
            self._draw()
            self._out.flush()
        elif self._running and self._clock() - self._spoke >= SILENCE_S:
            self.write(f"… still running: {'; '.join(self._lines())}\n".encode(errors="replace"))

    def close(self) -> None:
        """Takes away the lines at the bottom."""
        self._running.clear()
        self._erase()
        self._out.flush()

    def _lines(self) -> list[str]:
        now = self._clock()
        return [
            f"{job}: {step}  {duration(int(now - since) * 1000) if now - since >= 1 else '0s'}"
            for job, (step, since) in self._running.items()
        ]

    def _draw(self) -> None:
        if not self._live or not self._running:
            return
        width = max(20, shutil.get_terminal_size().columns)
        lines = self._lines()
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES - 1 :] = [f"and {len(lines) - _MAX_LINES + 1} more"]
        before, after = ("", "") if os.environ.get("NO_COLOR") else (_DIM, _PLAIN)
        for line in lines:
            self._out.write(f"{before}{f'  ● {line}'[: width - 1]}{after}\n".encode(errors="replace"))
        self._shown = len(lines)

    def _erase(self) -> None:
        if self._shown:
            self._out.write(f"\x1b[{self._shown}A\r{_CLEAR_BELOW}".encode())
            self._shown = 0


def _is_terminal(out: BinaryIO) -> bool:
    return out.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
