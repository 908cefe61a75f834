"""Environments of the packages that workflows import: made once, kept by what they depend on, apart by trust.

`<work dir>/dependencies/<trust>/<key>/` is an environment (`kici.agent.packages`), `…/<trust>/cache-…/` uv's cache.
Jobs get the files of an environment into their own directory and can write to neither.

With credentials for an index, and where builds are allowed, environments and caches are those of one repository:
others are to find neither what only it may have, nor what code that it names has written.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from kici.agent import packages, trash, uv_sync
from kici.agent.errors import DiskFull, PreparationFailed, is_disk_full
from kici.agent.kept_directories import KeptDirectories
from kici.agent.packages import Manifest
from kici.agent.sandbox.slot_users import PACKAGES_UIDS
from kici.agent.settings import Settings
from kici.agent.uv_sync import Installation
from kici.agent.workspace import Owner, Workspace
from kici.dependencies import registries
from kici.dependencies.declared import Declared, declared, key
from kici.dependencies.errors import DependenciesInvalid, UvMissing
from kici.dependencies.uv import credentials
from kici.engine.lockfile import LockRegistry
from kici.wire.context import JobContext

log = structlog.get_logger(__name__)

NAME = "dependencies"


class Dependencies:
    """One per agent. `prepare` may be called for several jobs at once."""

    def __init__(self, settings: Settings, *, sandboxed: bool) -> None:
        self._settings = settings
        self._sandboxed = sandboxed
        self._directories = KeptDirectories(
            "packages of workflows", settings.work_dir, settings.dependency_cache_bytes, self._kept
        )
        """In use: environments that are being made, checked or handed over, and uv's caches."""

    async def prepare(
        self,
        space: Workspace,
        files: Mapping[str, bytes],
        known: JobContext,
        say: Callable[[str], None],
        private: Sequence[LockRegistry] = (),
    ) -> bool:
        """Fill the workspace's `packages/`. False: the workflow needs none. Raises `PreparationFailed`, `DiskFull`.

        `private`: the indexes that want a token, which is one of the job's secrets.
        """
        try:
            wanted = declared(files)
            if wanted is not None:
                opened = registries.opened(wanted.project, private, known.secrets)
                await self._prepare(space, wanted, known, credentials(known.secrets) | opened, say)
        except (DependenciesInvalid, UvMissing) as error:
            raise PreparationFailed(str(error)) from error
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(self._settings.work_dir) from error
            raise PreparationFailed(f"the workflow's packages could not be kept: {error}") from error
        return wanted is not None

    def evict(self, wanted_bytes: int) -> int:
        """See `KeptDirectories.evict`."""
        return self._directories.evict(wanted_bytes)

    async def _prepare(
        self,
        space: Workspace,
        wanted: Declared,
        known: JobContext,
        opened: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        builds = self._settings.dependency_builds
        scope = hashlib.sha256(known.event.repo.encode()).hexdigest()[:16] if builds or opened else ""
        trust = known.event.trust.value
        home = self._home(trust)
        place = home / key(wanted, builds=builds, scope=scope)
        async with self._directories.alone(place):
            manifest = await asyncio.to_thread(packages.check, place)
            if manifest is None:
                if place.exists():
                    log.warning("kept packages were broken and are made again", directory=str(place))
                    trash.throw(self._settings.work_dir, place)
                say("installing the workflow's packages")
                cache = home / f"cache-{scope or 'shared'}"
                # One after the other where they share a cache: what the first has fetched the second does not fetch.
                async with self._directories.alone(cache):
                    manifest = await self._make(place, cache, trust, wanted, opened, say)
                await asyncio.to_thread(self._directories.keep_to_limit)
            else:
                say("the workflow's packages are here already")
            os.utime(place)
            await asyncio.to_thread(packages.hand_over, place, manifest, space.packages, link=space.owner is not None)

    async def _make(
        self,
        place: Path,
        cache: Path,
        trust: str,
        wanted: Declared,
        opened: Mapping[str, str],
        say: Callable[[str], None],
    ) -> Manifest:
        build = place.with_name(f"building-{secrets.token_hex(4)}")
        uid = PACKAGES_UIDS[trust] if self._sandboxed and os.geteuid() == 0 else None
        where = Installation(build, cache, None if uid is None else Owner(uid, uid), self._sandboxed)
        try:
            tree, said = await uv_sync.sync(where, wanted, builds=self._settings.dependency_builds, credentials=opened)
            for line in said.splitlines():
                say(line)
            await asyncio.to_thread(packages.seal, tree)
            os.utime(cache)
            return await asyncio.to_thread(packages.keep, tree, place)
        finally:
            trash.throw(self._settings.work_dir, build)

    def _home(self, trust: str) -> Path:
        home = self._settings.work_dir / NAME / trust
        for directory in (home.parent, home):
            directory.mkdir(mode=0o711, exist_ok=True)
            directory.chmod(0o711)
        return home

    def _kept(self) -> Iterator[Path]:
        for place in (self._settings.work_dir / NAME).glob("*/*"):
            if not place.name.startswith((".new-", "building-")):
                yield place


def clear_unfinished(work_dir: Path) -> None:
    """What an agent that was killed has left half made. With the lock of the work directory held."""
    for pattern in ("*/.new-*", "*/building-*"):
        for left in (work_dir / NAME).glob(pattern):
            trash.throw(work_dir, left)
