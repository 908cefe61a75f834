"""What every agent writes down about the user code that it runs, so that two attempts can be laid beside each other.

Lines are appended with one `write` each and survive a kill -9 of their writer. Times are CLOCK_MONOTONIC, which all
processes of a host share.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct


class Journal:
    """The writing side. One per process; a restarted agent goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()

    def begin(self, job_id: str, attempt: int) -> None:
        self._write("begin", job_id, attempt)

    def end(self, job_id: str, attempt: int) -> None:
        """User code has returned."""
        self._write("end", job_id, attempt)

    def killed(self, job_id: str, attempt: int, why: str) -> None:
        """User code was ended by the agent: `silence`, `withdrawn` or `cancel`."""
        self._write("killed", job_id, attempt, why)

    def _write(self, what: str, *more: object) -> None:
        os.write(self._file, f"{what} {self._pid} {time.monotonic():.6f} {' '.join(map(str, more))}\n".encode())


class Stretch(Struct, frozen=True):
    """Of user code of one attempt, from its beginning until it was surely over."""

    agent: str
    job_id: str
    attempt: int
    began: float
    ended: float
    how: str
    """`end`, `killed`, or `died`: its process was killed, and was seen to be gone at `ended`."""


def read(agent: str, path: Path, deaths: Mapping[int, float], now: float) -> list[Stretch]:
    """The stretches of one agent. `deaths`: pid → when the process was seen to be gone; what is still open ends now."""
    open_at: dict[tuple[int, str, int], float] = {}
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        what, pid, at, job_id, attempt, *_ = line.split(" ")
        key = (int(pid), job_id, int(attempt))
        if what == "begin":
            open_at[key] = float(at)
        else:
            found.append(Stretch(agent, job_id, int(attempt), open_at.pop(key), float(at), what))
    for (gone, job_id, number), began in open_at.items():
        found.append(Stretch(agent, job_id, number, began, deaths.get(gone, now), "died"))
    return found


def violations(stretches: Iterable[Stretch]) -> list[str]:
    """Attempts that began twice, and attempts of one job that ran at the same time."""
    by_job: defaultdict[str, list[Stretch]] = defaultdict(list)
    for one in stretches:
        by_job[one.job_id].append(one)
    found = []
    for job_id, ran in by_job.items():
        ran.sort(key=lambda one: one.began)
        begun: dict[int, Stretch] = {}
        for one in ran:
            if one.attempt in begun:
                first = begun[one.attempt]
                found.append(f"attempt {one.attempt} of job {job_id} began on {first.agent} and again on {one.agent}")
            begun.setdefault(one.attempt, one)
        for before, after in itertools.pairwise(ran):
            if after.began < before.ended and after.attempt != before.attempt:
                found.append(
                    f"attempts {before.attempt} ({before.agent}, {before.how}) and {after.attempt} ({after.agent},"
                    f" {after.how}) of job {job_id} overlapped for {before.ended - after.began:.3f} s"
                )
    return found


def longest_recovery_s(stretches: Iterable[Stretch]) -> float:
    """The longest time from the end of an attempt that got no further to the beginning of the job's next one."""
    by_job: defaultdict[str, list[Stretch]] = defaultdict(list)
    for one in stretches:
        by_job[one.job_id].append(one)
    return max((_longest(ran) for ran in by_job.values()), default=0.0)


def _longest(ran: Sequence[Stretch]) -> float:
    inorder = sorted(ran, key=lambda one: one.began)
    return max((after.began - before.ended for before, after in itertools.pairwise(inorder)), default=0.0)
