"""Whether a runner answers while its job runs, and what to think of one that does not.

The runner's event loop answers. User code may keep it busy for as long as its step may take, which is that step's own
affair: its deadline ends it. But a runner that the kernel has stopped (`SIGSTOP`), and one that is silent while no step
runs, will not come back by itself.

Only time in which we listened counts: neither a machine that was suspended or is slow, nor a log that is written
slowly, is held against a runner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from kici.runner.processes import descendants

TICK_S = 1.0
ASK_S = 5.0
"""Between two questions. There is never more than one without an answer."""
SILENT_S = 60.0
"""After so long without an answer a runner that should answer is given up."""


class Pulse:
    def __init__(
        self,
        *,
        ask: Callable[[], None],
        listens: Callable[[], bool],
        works: Callable[[], bool],
        is_stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`ask` sends a question, whose answer is told by `answered`. `listens`: whether we wait for what the runner
        says; if not, an answer may lie there unread. `works`: whether a step runs."""
        self._ask = ask
        self._listens = listens
        self._works = works
        self._is_stopped = is_stopped
        self._clock = clock
        self._sleep = sleep
        self._waits = False
        self._silent_s = 0.0
        """For which there was no answer to a question."""

    def answered(self) -> None:
        self._waits = False
        self._silent_s = 0.0

    async def lost(self) -> str:
        """Return when the runner is to be given up: why."""
        since_s = 0.0
        while True:
            began = self._clock()
            await self._sleep(TICK_S)
            # A tick that comes late says something about the machine, not about the runner.
            took_s = min(self._clock() - began, 2 * TICK_S)
            since_s += took_s
            if not self._listens():
                self._silent_s = 0.0
            elif self._waits:
                self._silent_s += took_s
            elif since_s >= ASK_S:
                self._ask()
                self._waits, since_s = True, 0.0
            if self._silent_s >= SILENT_S:
                if self._is_stopped():
                    return f"{self.of_stopped()}: the job was killed"
                if not self._works():
                    return f"the runner did not answer for {SILENT_S:g} s while no step ran: the job was killed"

    def of_stopped(self) -> str:
        return f"the runner did not answer for {self._silent_s:.0f} s: it is stopped (SIGSTOP)"

    def excuse(self) -> str:
        """Of a step that did not end in time: what its runner has to do with it. Empty if that answers."""
        if self._is_stopped():
            return self.of_stopped()
        if self._silent_s < 2 * TICK_S:
            return ""
        return (
            f"the runner did not answer for {self._silent_s:.0f} s: the step blocks its event loop"
            " (an `async def` that does not await: write `def`, or await)"
        )


def host_pid(box: int, inner: int) -> int | None:
    """The process below `box` that calls itself `inner` in the PID namespace that it is in. None: it is not found."""
    return next((pid for pid in (box, *descendants(box)) if _innermost(pid) == str(inner)), None)


def is_stopped(pid: int) -> bool:
    """By a signal; a debugger does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _innermost(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith("NSpid:")), str(pid))
