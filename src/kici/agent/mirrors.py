"""What earlier jobs have fetched of a repository, kept so that a job fetches only what is new: apart by trust.

`<work dir>/mirrors/<trust>/<key>/` is a mirror (`kici.agent.kept_packs`). The network belongs to the jobs: each asks
the server with its own credential, into its own repository, to which the mirror has lent its packs; what came is kept
afterwards. So a server that refuses refuses the code too, no fetch waits for another one's, and a mirror holds what git
has verified, or nothing. One that is damaged is thrown away, and the same job fetches everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from kici.agent import fetching, kept_directories, kept_packs, repository, trash
from kici.agent.errors import DiskFull, MirrorBroken, is_disk_full
from kici.agent.fetching import Say
from kici.agent.git import Git, GitFailed, Remote
from kici.agent.kept_directories import KeptDirectories
from kici.agent.kept_packs import Manifest
from kici.agent.settings import Settings
from kici.engine.events import Trust

log = structlog.get_logger(__name__)

NAME = "mirrors"
MAX_PACKS = 50
"""A mirror with so many is not used again but made anew by the next job that lacks something in it."""
SPARE_BYTES = 64 * 1024 * 1024
"""Nor one that has become larger than twice its first pack and this: its commits have little in common by then."""
MAX_TIPS = 100
MAX_LENT_TIPS = 16
"""What a job tells the server that it has: git's first question holds so many."""


class Mirrors:
    """One per agent. `commits` may be called for several jobs at once."""

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
        if not self._are_kept:
            await fetching.commits(git, source, names, ref, say)
            return
        place = self._place(source.url, trusted=trusted)
        with self._directories.using(place) as lock:
            lent = await self._lend(place, lock, git, source, names, say)
            by_mirror = lent is not None and await self._fetched(place, lock, git, source, names, lent, say)
            # What only a ref led to may be anything.
            if not by_mirror and not await fetching.commits(git, source, names, ref, say):
                return
            more = await self._keep(place, lock, git, source, names, lent if by_mirror else None)
        if more:
            await asyncio.to_thread(self._directories.keep_to_limit)

    def evict(self, wanted_bytes: int) -> int:
        """See `KeptDirectories.evict`."""
        return self._directories.evict(wanted_bytes)

    # ── before the fetch ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _lend(
        self, place: Path, lock: asyncio.Lock, git: Git, source: Remote, names: Sequence[str], say: Say
    ) -> Manifest | None:
        async with lock:
            try:
                return await asyncio.to_thread(self._lend_now, place, git, names)
            except (MirrorBroken, OSError) as error:
                if is_disk_full(error):
                    raise DiskFull(self._settings.work_dir) from error
                self._throw_broken(place, source, error, say)
                repository.make_again(git, source.url)
                return None

    def _lend_now(self, place: Path, git: Git, names: Sequence[str]) -> Manifest | None:
        kept = kept_packs.read(place)
        if kept is None or (is_full(kept) and not has(kept, names)):
            return None
        kept_packs.lend(place, kept, repository.make_packs(git), link=git.space.owner is not None)
        os.utime(place)
        return kept

    # ── the fetch ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fetched(
        self, place: Path, lock: asyncio.Lock, git: Git, source: Remote, names: Sequence[str], lent: Manifest, say: Say
    ) -> bool:
        """False: what was lent is of no use, and the job's repository is empty again. Raises `PreparationFailed`."""
        asking = asyncio.create_task(_ask(git, source, names, lent, say))
        try:
            # Read beside the network; nothing uses it before both are done.
            await asyncio.to_thread(kept_packs.check, repository.packs(git), lent)
            await asking
        except (MirrorBroken, GitFailed) as error:
            if not isinstance(error, GitFailed) or not fetching.is_of_server(error):
                async with lock:
                    self._throw_broken(place, source, error, say)
            elif not fetching.is_unadvertised(error):
                raise
        else:
            return True
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        repository.make_again(git, source.url)
        return False

    # ── after it ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(
        self, place: Path, lock: asyncio.Lock, git: Git, source: Remote, names: Sequence[str], lent: Manifest | None
    ) -> bool:
        """Whether there is more than before. What cannot be kept costs the job nothing."""
        async with lock:
            try:
                return await asyncio.to_thread(self._keep_now, place, git, source, names, lent)
            except (OSError, MirrorBroken) as error:
                log.warning("a mirror could not be written", directory=str(place), reason=str(error))
                # At once: the job may need the room now.
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
                return False

    def _keep_now(self, place: Path, git: Git, source: Remote, names: Sequence[str], lent: Manifest | None) -> bool:
        kept = kept_packs.read(place)
        annotated = set(repository.tags(git).values()) - set(names)
        if kept is not None and lent is None and is_full(kept):
            trash.throw(self._settings.work_dir, place)
            kept = None
        if kept is not None and has(kept, names) and annotated <= set(kept.tags):
            return False
        if git.space.owner is None and not self._has_room(kept_directories.size(repository.packs(git))):
            return False
        if kept is None:
            self._make(place, source.url)
            kept = Manifest()
        taken = kept_packs.take(place, repository.packs(git), kept.packs, git.space.owner)
        tips = tuple(dict.fromkeys([*names, *kept.tips]))[:MAX_TIPS]
        cut = {*kept.shallow, *repository.shallow(git)}
        manifest = Manifest(
            packs=(*kept.packs, *taken),
            tips=tips,
            shallow=tuple(tip for tip in tips if tip in cut),
            tags=tuple(sorted({*kept.tags, *annotated})),
        )
        if manifest.bytes > self._settings.mirrors_bytes:
            trash.throw(self._settings.work_dir, place)
            return False
        kept_packs.write(place, manifest)
        os.utime(place)
        return True

    def _make(self, place: Path, url: str) -> None:
        for directory in (place.parent.parent, place.parent, place):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
        (place / kept_packs.ADDRESS).write_text(f"{url}\n")

    def _has_room(self, more_bytes: int) -> bool:
        """For copies; a link takes none."""
        return shutil.disk_usage(self._settings.work_dir).free - more_bytes >= self._settings.min_free_bytes

    def _throw_broken(self, place: Path, source: Remote, reason: object, say: Say) -> None:
        log.warning("a mirror was broken and is made again", directory=str(place), reason=str(reason))
        say(f"what this agent has kept of {source.url} is broken ({reason}); fetching it anew")
        trash.throw(self._settings.work_dir, place)

    def _place(self, url: str, *, trusted: bool) -> Path:
        key = hashlib.sha256(_normal(url).encode()).hexdigest()[:32]
        trust = Trust.TRUSTED if trusted else Trust.UNKNOWN
        return self._settings.work_dir / NAME / trust.value / key

    def _kept(self) -> Iterator[Path]:
        return (self._settings.work_dir / NAME).glob("*/*")


def has(kept: Manifest, names: Sequence[str]) -> bool:
    return set(names) <= set(kept.tips)


def is_full(kept: Manifest) -> bool:
    return len(kept.packs) >= MAX_PACKS or kept.bytes > 2 * kept.packs[0].bytes + SPARE_BYTES


async def _ask(git: Git, source: Remote, names: Sequence[str], lent: Manifest, say: Say) -> None:
    """The server's answer counts, whatever the mirror has. Afterwards the repository is as without a mirror, but for
    objects that nothing leads to."""
    if has(lent, names):
        tags = await fetching.tags_at(git, source, names, say)
        if all(tag.object in lent.tags for tag in tags if tag.is_annotated):
            repository.set_packed_refs(git, fetching.numbered(names) | {tag.name: tag.object for tag in tags})
            repository.set_shallow(git, [sha for sha in lent.shallow if sha in names])
            return
    tips = lent.tips[:MAX_LENT_TIPS]
    repository.set_packed_refs(git, {f"refs/kici/lent/{number}": sha for number, sha in enumerate(tips)})
    repository.set_shallow(git, lent.shallow)
    await fetching.by_name(git, source, names, say)
    repository.set_packed_refs(git, {})
    repository.set_shallow(git, [sha for sha in repository.shallow(git) if sha in names])
    await repository.keep_tags_at(git, names)


def _normal(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port not in (None, {"http": 80, "https": 443}[parts.scheme]) else ""
    return f"{parts.scheme}://{(parts.hostname or '').lower()}{port}{parts.path.rstrip('/')}?{parts.query}"
