"""What earlier jobs have fetched by Git LFS, lent to the next job of the same repository and trust.

An object is its content: a job gets those that its commit's pointers name, each checked against its name, and git-lfs
fetches the others. The server is not asked for one that was lent: it has given this job the commit that names it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from kici.agent import kept_objects
from kici.agent.errors import DiskFull, is_disk_full
from kici.agent.fetching import Say
from kici.agent.git import Git, Remote
from kici.agent.mirror_places import MirrorPlaces

log = structlog.get_logger(__name__)

KIND = "-lfs"
LIST_S = 600.0


class LfsMirrors:
    """One per agent. `around` may be called for several jobs at once."""

    def __init__(self, places: MirrorPlaces) -> None:
        self._places = places

    async def around(
        self, pull: Callable[[], Awaitable[object]], git: Git, source: Remote, sha: str, say: Say, *, trusted: bool
    ) -> None:
        """`pull` fetches what the repository has not, from the repository's own server. Raises what it raises, and
        `DiskFull`. `trusted`: whether what comes may be lent to jobs that are."""
        if not self._places.are_kept:
            await pull()
            return
        place = self._places.of(source.url, trusted=trusted, kind=KIND)
        with self._places.directories.using(place) as lock:
            if place.exists():
                await self._lend(place, lock, git, await _named(git, sha), say)
            await pull()
            more = await self._keep(place, lock, git, source)
        if more:
            await asyncio.to_thread(self._places.directories.keep_to_limit)

    async def _lend(self, place: Path, lock: asyncio.Lock, git: Git, names: list[str], say: Say) -> None:
        store = _store(git)
        async with lock:
            try:
                lent = await asyncio.to_thread(kept_objects.lend, place, names, store, git.space)
            except OSError as error:
                if is_disk_full(error):
                    raise DiskFull(self._places.work_dir) from error
                log.warning("a mirror was broken and is made again", directory=str(place), reason=str(error))
                self._places.throw(place)
                lent = await asyncio.to_thread(lambda: list(kept_objects.found(store)))
        damaged = await asyncio.to_thread(kept_objects.damaged, lent, store)
        if damaged:
            log.warning("objects in a mirror were damaged", directory=str(place), objects=damaged[:10])
            say(f"{len(damaged)} objects that this agent has kept are broken; fetching them anew")
            async with lock:
                await asyncio.to_thread(kept_objects.drop, place, damaged)

    async def _keep(self, place: Path, lock: asyncio.Lock, git: Git, source: Remote) -> bool:
        """Whether there is more than before. What cannot be kept costs the job nothing."""
        async with lock:
            try:
                return await asyncio.to_thread(self._keep_now, place, git, source)
            except OSError as error:
                log.warning("a mirror could not be written", directory=str(place), reason=str(error))
                # At once: the job may need the room now.
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
                return False

    def _keep_now(self, place: Path, git: Git, source: Remote) -> bool:
        files = kept_objects.found(_store(git))
        if sum(file.stat().st_size for file in files.values()) > self._places.limit_bytes:
            self._places.throw(place)
            return False
        new = [file for name, file in files.items() if not (place / name).exists()]
        more_bytes = sum(file.stat().st_size for file in new)
        if not new or (git.space.owner is None and not self._places.has_room(more_bytes)):
            return False
        self._places.make(place, source.url)
        kept_objects.take(place, new, git.space)
        kept_objects.trim(place, files)
        return True


def _store(git: Git) -> Path:
    return git.top / ".git" / "lfs" / "objects"


async def _named(git: Git, sha: str) -> list[str]:
    """By the pointers of the commit, each once."""
    listing = await git.run("lfs", "ls-files", "--long", sha, timeout_s=LIST_S)
    names = (line.partition(b" ")[0].decode(errors="replace") for line in listing.splitlines())
    return sorted({name for name in names if kept_objects.NAME.fullmatch(name)})
