"""How steps and their job ended, with what only the host knows of it: memory, processes, disk.

The runner says what it saw; that is believed only as far as it is told to users as a sentence. What the box has used
comes from the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from kici.agent.sandbox.contract import Box, Limits
from kici.engine import failure
from kici.engine.failure import Facts, Reason
from kici.engine.lockfile import LockJob
from kici.wire.runner import JobEnded, StepEnded

SAMPLE_S = 0.25
MAX_ERROR_CHARS = 8_000
MAX_TAIL_CHARS = 32_768
_FULL_BYTES = 1024**2
"""A disk with less than this is full: not even a small file of somebody else's clean-up changes that."""
_SIGNAL = re.compile(r"(SIG[A-Z0-9+-]{1,12}|signal \d{1,3})?")
_MAX_CODE = 2**31 - 1
_FAILED = ("failed", "cancelled")


class PostMortem:
    """Of one job in one box."""

    def __init__(self, job: LockJob, box: Box, limits: Limits, root: Path, hide: Callable[[str], str]) -> None:
        """`hide`: gives a text without the job's secrets. `root`: a directory on the job's disk."""
        self._job = job
        self._box = box
        self._limits = limits
        self._root = root
        self._hide = hide
        self._timer: asyncio.TimerHandle | None = None
        self._kills = self._refused = 0
        """So many of the box are told already."""
        self._failed: dict[int, tuple[str, StepEnded]] = {}
        """Index → what the runner said, and what became of it."""

    def watch(self) -> None:
        """Measure from now on, until `stop`."""
        self._box.usage()
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self.watch)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def of_step(self, ended: StepEnded) -> StepEnded:
        """With its sentence as its error, and its last lines masked and cut."""
        facts = self._facts(ended)
        if ended.status not in _FAILED:
            return replace(
                ended,
                exit_code=facts.exit_code,
                error=ended.error[:MAX_ERROR_CHARS],
                peak_memory_bytes=facts.peak_memory_bytes,
                reason="",
                signal="",
                last_lines="",
            )
        told = replace(
            ended,
            exit_code=facts.exit_code,
            error=failure.sentence(facts)[:MAX_ERROR_CHARS],
            reason=failure.kind(facts),
            signal=facts.signal,
            last_lines=facts.last_lines,
            peak_memory_bytes=facts.peak_memory_bytes,
        )
        if ended.final:
            self._failed[ended.index] = ended.error, told
        return told

    def of_job(self, ended: JobEnded) -> JobEnded:
        """With the sentence and the facts of the step that made it fail."""
        peak = self._box.usage().peak_memory_bytes
        ended = replace(ended, error=ended.error[:MAX_ERROR_CHARS], peak_memory_bytes=peak)
        if ended.status != "failed":
            return replace(ended, reason=Reason.CANCELLED if ended.status == "cancelled" else "")
        found = None if ended.failed_step is None else self._failed.get(ended.failed_step)
        if found is None or ended.reason:
            return replace(ended, reason=ended.reason or Reason.ERROR)
        said, step = found
        name = self._job.steps[step.index].name
        before, after = failure.of_step(name, said), failure.of_step(name, step.error)
        error = after + ended.error[len(before) :] if ended.error.startswith(before) else ended.error
        return replace(
            ended,
            error=error[:MAX_ERROR_CHARS],
            reason=step.reason,
            exit_code=step.exit_code,
            signal=step.signal,
        )

    def of_runner(self, exit_code: int) -> JobEnded:
        """The runner has ended before it told how the job ended."""
        name = failure.signal_of(exit_code) if exit_code < 0 else ""
        said = failure.of_runner(exit_code, "before the job ended")
        facts = self._facts(StepEnded(-1, "failed", error=said, reason=Reason.RUNNER, signal=name))
        return JobEnded("failed", failure.sentence(facts), reason=failure.kind(facts), signal=name)

    def _facts(self, ended: StepEnded) -> Facts:
        used = self._box.usage()
        kills, refused = used.out_of_memory_kills or 0, used.refused_processes or 0
        facts = Facts(
            said=ended.error,
            reason=_reason(ended),
            exit_code=_code(ended),
            signal=_signal(ended),
            last_lines=failure.last_lines(self._hide(ended.last_lines[:MAX_TAIL_CHARS])) if ended.last_lines else "",
            out_of_memory_kills=max(kills - self._kills, 0),
            refused_processes=max(refused - self._refused, 0),
            disk_full=ended.status == "failed" and _is_full(self._root),
            peak_memory_bytes=used.peak_memory_bytes,
            memory_limit_bytes=self._limits.memory_bytes,
            processes_limit=self._limits.pids,
        )
        self._kills, self._refused = max(kills, self._kills), max(refused, self._refused)
        return facts


def _reason(ended: StepEnded) -> Reason:
    try:
        return Reason(ended.reason)
    except ValueError:
        return Reason.CANCELLED if ended.status == "cancelled" else Reason.ERROR


def _code(ended: StepEnded) -> int | None:
    """None for a number that no system has as an exit code."""
    return ended.exit_code if ended.exit_code is not None and abs(ended.exit_code) <= _MAX_CODE else None


def _signal(ended: StepEnded) -> str:
    return ended.signal if _SIGNAL.fullmatch(ended.signal) else ""


def _is_full(directory: Path) -> bool:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
