"""Room in the work directory: without enough of it the agent takes no job, and says so, until there is again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

LOOK_S = 5.0


class Evictable(Protocol):
    """A cache in the work directory, which can be made again."""

    def evict(self, wanted_bytes: int) -> int:
        """Throw away what was used least recently, until about so much is free. Returns how much that was.

        Called in a thread. What a job uses now stays.
        """


class Disk:
    """A service. `look` may be called at any time, in the loop's thread."""

    def __init__(
        self,
        work_dir: Path,
        *,
        min_free_bytes: int,
        min_free_inodes: int,
        caches: Sequence[Evictable] = (),
        left: Callable[[], Mapping[str, str]] = dict,
        on_change: Callable[[], None] = lambda: None,
        look_s: float = LOOK_S,
    ) -> None:
        """`left`: paths of jobs' files that cannot be removed; they are counted in what is told."""
        self._work_dir = work_dir
        self._min_free_bytes = min_free_bytes
        self._min_free_inodes = min_free_inodes
        self._caches = caches
        self._left = left
        self._on_change = on_change
        self._look_s = look_s
        self.problem = ""
        """Why no job is taken, as it was when that began; empty = there is room."""

    async def run(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(self._look_s)

    async def run_once(self) -> None:
        """Look, and evict caches if there is too little room. What is thrown away is free a little later."""
        if self.look():
            free_bytes, free_inodes = free(self._work_dir)
            # Inodes cannot be asked for: whatever has been used least recently goes, a tenth of what is wanted at once.
            wanted = self._min_free_bytes - free_bytes
            if free_inodes is not None and free_inodes < self._min_free_inodes:
                wanted = max(wanted, self._min_free_bytes // 10, 1)
            for cache in self._caches:
                if wanted > 0:
                    wanted -= await asyncio.to_thread(cache.evict, wanted)
            self.look()

    def look(self) -> str:
        """Why no job is to be taken now; empty = there is room."""
        problem = self._problem()
        if bool(problem) != bool(self.problem):
            self.problem = problem
            if problem:
                log.warning("no job is taken any more", reason=problem)
            else:
                log.info("there is room for jobs again")
            self._on_change()
        return self.problem

    def _problem(self) -> str:
        found = missing(self._work_dir, self._min_free_bytes, self._min_free_inodes)
        if not found:
            return ""
        left = len(self._left())
        also = f"; {left} of jobs' directories could not be removed, see the agent's log" if left else ""
        return f"disk: {found} in {self._work_dir}{also}"


def missing(work_dir: Path, min_free_bytes: int, min_free_inodes: int) -> str:
    """What there is too little of; empty = there is room."""
    free_bytes, free_inodes = free(work_dir)
    told = []
    if free_bytes < min_free_bytes:
        told.append(f"{free_bytes:,} bytes free, KICI_MIN_FREE_BYTES is {min_free_bytes:,}")
    if free_inodes is not None and free_inodes < min_free_inodes:
        told.append(f"{free_inodes:,} inodes free, KICI_MIN_FREE_INODES is {min_free_inodes:,}")
    return " and ".join(told)


def free(directory: Path) -> tuple[int, int | None]:
    """Bytes and inodes; a file system that does not count inodes says that it has none at all."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None
