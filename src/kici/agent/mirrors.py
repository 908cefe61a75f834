"""What earlier jobs have fetched of a repository, kept so that a job fetches only what is new: apart by trust.

`<work dir>/mirrors/<trust>/<key>/` is a mirror (`kici.agent.kept_packs`) of commits, `<key>-history/` one of the whole
history. The network belongs to the jobs: each asks the server with its own credential, into its own repository, to
which the mirror has lent its packs; what came is kept afterwards. So a server that refuses refuses the code too, no
fetch waits for another one's, and a mirror holds what git has verified, or nothing. One that is damaged is thrown away,
and the same job fetches everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog

from kici.agent import fetching, kept_directories, kept_packs, repository, trash
from kici.agent.errors import DiskFull, MirrorBroken, is_disk_full
from kici.agent.fetching import Say
from kici.agent.git import Git, GitFailed, Remote
from kici.agent.kept_commits import Commits
from kici.agent.kept_directories import KeptDirectories
from kici.agent.kept_history import History
from kici.agent.kept_packs import Manifest, Pack
from kici.agent.settings import Settings
from kici.engine.events import Trust

log = structlog.get_logger(__name__)

NAME = "mirrors"
HISTORY = "-history"


class Wanted(Protocol):
    """What a job wants of a repository: how it comes, and what of it the next job is lent."""

    @property
    def git(self) -> Git: ...
    @property
    def source(self) -> Remote: ...
    @property
    def say(self) -> Say: ...

    def of_use(self, kept: Manifest) -> Manifest | None:
        """What of it to lend."""

    def bring_with(self, lent: Manifest) -> Coroutine[Any, Any, None]:
        """Into a repository that has those packs and nothing else. The server's answer counts, whatever the mirror
        has. Afterwards it is as without a mirror, but for objects that nothing leads to. Raises `GitFailed`."""

    async def bring_alone(self) -> bool:
        """Whether it may be kept. Raises `PreparationFailed`."""

    def is_new(self, kept: Manifest | None, lent: Manifest | None) -> bool:
        """Whether the job's repository has what ought to be kept. `lent`: what it had, None for nothing."""

    def grown(self, kept: Manifest, taken: tuple[Pack, ...]) -> Manifest: ...


class Mirrors:
    """One per agent. Its methods may be called for several jobs at once."""

    def __init__(self, settings: Settings, *, sandboxed: bool) -> None:
        """Without a sandbox jobs are the agent's own user and could write in a mirror: then there is none."""
        self._settings = settings
        self._are_kept = settings.mirrors and sandboxed
        self._directories = KeptDirectories("mirrors", settings.work_dir, settings.mirrors_bytes, self._kept)

    async def commits(
        self, git: Git, source: Remote, wanted: Sequence[str], ref: str, say: Say, *, trusted: bool
    ) -> None:
        """As `fetching.commits`. `trusted`: whether what comes may be lent to jobs that are."""
        names = fetching.checked(wanted)
        say(f"fetching {names[0]} from {source.url}")
        await self._bring(self._place(source.url, trusted=trusted), Commits(git, source, names, ref, say))

    async def history(
        self, git: Git, source: Remote, wanted: Sequence[str], ref: str, say: Say, *, tags: bool, trusted: bool
    ) -> None:
        """The whole, of a repository that has the commits: as `fetching.history`."""
        names = fetching.checked(wanted)

        async def commits() -> None:
            await self.commits(git, source, names, ref, say, trusted=trusted)

        place = self._place(source.url, trusted=trusted, what=HISTORY)
        await self._bring(place, History(git, source, names, ref, say, tags, commits))

    def evict(self, wanted_bytes: int) -> int:
        """See `KeptDirectories.evict`."""
        return self._directories.evict(wanted_bytes)

    async def _bring(self, place: Path, wanted: Wanted) -> None:
        if not self._are_kept:
            await wanted.bring_alone()
            return
        with self._directories.using(place) as lock:
            lent = await self._lend(place, lock, wanted)
            by_mirror = lent is not None and await self._brought(place, lock, wanted, lent)
            if not by_mirror and not await wanted.bring_alone():
                return
            more = await self._keep(place, lock, wanted, lent if by_mirror else None)
        if more:
            await asyncio.to_thread(self._directories.keep_to_limit)

    # ── before the fetch ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _lend(self, place: Path, lock: asyncio.Lock, wanted: Wanted) -> Manifest | None:
        async with lock:
            try:
                return await asyncio.to_thread(self._lend_now, place, wanted)
            except (MirrorBroken, OSError) as error:
                if is_disk_full(error):
                    raise DiskFull(self._settings.work_dir) from error
                self._throw_broken(place, wanted, error)
                repository.make_again(wanted.git, wanted.source.url)
                return None

    def _lend_now(self, place: Path, wanted: Wanted) -> Manifest | None:
        kept = kept_packs.read(place)
        lent = None if kept is None else wanted.of_use(kept)
        if lent is None:
            return None
        git = wanted.git
        if repository.packs(git).exists():
            repository.make_again(git, wanted.source.url)
        kept_packs.lend(place, lent, repository.make_packs(git), link=git.space.owner is not None)
        os.utime(place)
        return lent

    # ── the fetch ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _brought(self, place: Path, lock: asyncio.Lock, wanted: Wanted, lent: Manifest) -> bool:
        """False: what was lent is of no use, and the job's repository is empty again. Raises `PreparationFailed`."""
        asking = asyncio.create_task(wanted.bring_with(lent))
        try:
            # Read beside the network; nothing uses it before both are done.
            await asyncio.to_thread(kept_packs.check, repository.packs(wanted.git), lent)
            await asking
        except (MirrorBroken, GitFailed) as error:
            if not isinstance(error, GitFailed) or not fetching.is_of_server(error):
                async with lock:
                    self._throw_broken(place, wanted, error)
            elif not fetching.is_unadvertised(error):
                raise
        else:
            return True
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        repository.make_again(wanted.git, wanted.source.url)
        return False

    # ── after it ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, place: Path, lock: asyncio.Lock, wanted: Wanted, lent: Manifest | None) -> bool:
        """Whether there is more than before. What cannot be kept costs the job nothing."""
        async with lock:
            try:
                return await asyncio.to_thread(self._keep_now, place, wanted, lent)
            except (OSError, MirrorBroken) as error:
                log.warning("a mirror could not be written", directory=str(place), reason=str(error))
                # At once: the job may need the room now.
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
                return False

    def _keep_now(self, place: Path, wanted: Wanted, lent: Manifest | None) -> bool:
        kept, git = kept_packs.read(place), wanted.git
        if kept is not None and kept.is_full:
            if lent is not None and lent.is_full:
                return False
            kept = self._cut(place, lent)
        if not wanted.is_new(kept, lent):
            return False
        if git.space.owner is None and not self._has_room(kept_directories.size(repository.packs(git))):
            return False
        if kept is None:
            self._make(place, wanted.source.url)
            kept = Manifest()
        taken = kept_packs.take(place, repository.packs(git), kept.packs, git.space.owner)
        manifest = wanted.grown(kept, taken)
        if manifest.bytes > self._settings.mirrors_bytes:
            trash.throw(self._settings.work_dir, place)
            return False
        kept_packs.write(place, manifest)
        os.utime(place)
        return True

    def _cut(self, place: Path, lent: Manifest | None) -> Manifest | None:
        """To what was lent of one that is full."""
        if lent is None:
            trash.throw(self._settings.work_dir, place)
        else:
            kept_packs.write(place, lent)
        return lent

    def _make(self, place: Path, url: str) -> None:
        for directory in (place.parent.parent, place.parent, place):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
        (place / kept_packs.ADDRESS).write_text(f"{url}\n")

    def _has_room(self, more_bytes: int) -> bool:
        """For copies; a link takes none."""
        return shutil.disk_usage(self._settings.work_dir).free - more_bytes >= self._settings.min_free_bytes

    def _throw_broken(self, place: Path, wanted: Wanted, reason: object) -> None:
        log.warning("a mirror was broken and is made again", directory=str(place), reason=str(reason))
        wanted.say(f"what this agent has kept of {wanted.source.url} is broken ({reason}); fetching it anew")
        trash.throw(self._settings.work_dir, place)

    def _place(self, url: str, *, trusted: bool, what: str = "") -> Path:
        key = hashlib.sha256(_normal(url).encode()).hexdigest()[:32]
        trust = Trust.TRUSTED if trusted else Trust.UNKNOWN
        return self._settings.work_dir / NAME / trust.value / f"{key}{what}"

    def _kept(self) -> Iterator[Path]:
        return (self._settings.work_dir / NAME).glob("*/*")


def _normal(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port not in (None, {"http": 80, "https": 443}[parts.scheme]) else ""
    return f"{parts.scheme}://{(parts.hostname or '').lower()}{port}{parts.path.rstrip('/')}?{parts.query}"
