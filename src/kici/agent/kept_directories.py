"""Directories that are kept for later jobs: in use or not, thrown away by when they were used last; and how their files
are lent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import structlog

from kici.agent import trash

log = structlog.get_logger(__name__)


class KeptDirectories:
    """Of one kind, below one work directory. `using` and `alone` are of the event loop; threads may call the rest."""

    def __init__(self, what: str, work_dir: Path, limit_bytes: int, places: Callable[[], Iterable[Path]]) -> None:
        """`what`: for the log. `limit_bytes`: of all together. `places`: those that may go."""
        self._what = what
        self._work_dir = work_dir
        self._limit_bytes = limit_bytes
        self._places = places
        self._busy: dict[Path, tuple[asyncio.Lock, int]] = {}
        """Those in use, by how many, and what whoever reads or changes one holds."""

    @contextlib.contextmanager
    def using(self, place: Path) -> Iterator[asyncio.Lock]:
        """Safe from eviction; and the lock of that place."""
        lock, count = self._busy.get(place, (asyncio.Lock(), 0))
        self._busy[place] = lock, count + 1
        try:
            yield lock
        finally:
            lock, count = self._busy.pop(place)
            if count > 1:
                self._busy[place] = lock, count - 1

    @contextlib.asynccontextmanager
    async def alone(self, place: Path) -> AsyncIterator[None]:
        """Using it, with its lock held."""
        with self.using(place) as lock:
            async with lock:
                yield

    def evict(self, wanted_bytes: int) -> int:
        """Throw away what was used least recently until about so much is free. Returns how much that was."""
        freed = 0
        for place in sorted(self._places(), key=used_at):
            if freed >= wanted_bytes:
                break
            if place not in self._busy:
                taken = size(place)
                trash.throw(self._work_dir, place)
                log.info("evicted what was kept", what=self._what, directory=str(place), bytes=taken)
                freed += taken
        return freed

    def keep_to_limit(self) -> None:
        total = sum(map(size, self._places()))
        if total > self._limit_bytes:
            self.evict(total - self._limit_bytes)


def used_at(place: Path) -> float:
    """When its directory was last changed or touched, in seconds since 1970; 0 if it is gone."""
    try:
        return place.lstat().st_mtime
    except OSError:
        return 0.0


def size(place: Path) -> int:
    """Bytes that its files take; links are not followed."""
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total


def link_or_copy(source: Path, made: Path, *, link: bool) -> None:
    """One file. A link is for whoever cannot write to it: it is the same file. A copy has the same mode."""
    if link:
        try:
            os.link(source, made, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM):
                raise
        else:
            return
    shutil.copy(source, made, follow_symlinks=False)
