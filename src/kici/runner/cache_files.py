"""The files of a cache: of the checkout and of the home directory, packed by `tar` under `repo/` and `home/`.

What is restored takes the place of what is there: of exactly the paths of the cache, and what stands beside them stays.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType

from kici.engine import templates
from kici.engine.patterns import matches
from kici.errors import KiciError
from kici.runner.archive import SCRATCH_PREFIX, pack, scratch, unpack
from kici.runner.placing import replace
from kici.runner.program import ArtifactFailed
from kici.runner.shell import Activity, Doing
from kici.runner.transfers import Transfers
from kici.sdk.caches import Cache


class CacheFiles:
    def __init__(self, root: str, transfers: Transfers, fields: dict[str, str]) -> None:
        self._root = root
        self._transfers = transfers
        self._fields = fields | {"os": platform.system().lower(), "arch": platform.machine().lower()}

    def key(self, template: str) -> str:
        """Raises `EngineError` for a template that names what there is not."""
        return templates.expand_cache_key(template, self._fields, self._digest)

    async def restore(self, key: str, paths: Sequence[str], prefixes: Sequence[str]) -> str:
        """The key of the entry that was restored; empty if there was none. Raises `ArtifactFailed`."""
        with scratch(self._beside(paths)) as top:
            found = await self._transfers.fetch_cache(key, prefixes, partial(unpack, directory=top))
            if found:  # only now: an archive that was cut off touches nothing
                moves = [(os.path.join(top, _member(path)), *self._place(path)) for path in paths]
                await asyncio.to_thread(replace, moves)
        return found

    def _beside(self, paths: Sequence[str]) -> str:
        """Where to unpack: on the file system of what is restored, or the move would be a copy."""
        home = os.path.expanduser("~")
        place = home if all(path.startswith("~/") for path in paths) else self._root
        os.makedirs(place, exist_ok=True)
        return place

    def _place(self, path: str) -> tuple[str, str]:
        """Where a path of a cache is, and what it must not leave."""
        if path.startswith("~/"):
            return os.path.join(os.path.expanduser("~"), path[2:]), os.path.expanduser("~")
        return os.path.join(self._root, path), self._root

    async def save(self, key: str, paths: Sequence[str]) -> str:
        """Which of the paths are not there. Raises `ArtifactFailed` if none is, or the host does not keep it."""
        async with _places(self._root) as top:
            members = [_member(path) for path in paths]
            there = [member for member in members if os.path.lexists(os.path.join(top, member))]
            missing = ", ".join(path for path, member in zip(paths, members, strict=True) if member not in there)
            if not there:
                raise ArtifactFailed(f"{key} was not saved: {missing} is not there")
            await self._transfers.save_cache(key, partial(pack, top, there))
            return missing

    def _digest(self, globs: Sequence[str]) -> str:
        """Of names and contents; the same on every machine. Of nothing if the globs find nothing."""
        import hashlib  # late: most jobs start without it

        whole = hashlib.sha256()
        for path in sorted(_files_below(self._root)):
            if matches(globs, path):
                with open(os.path.join(self._root, path), "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                whole.update(f"{content} {path}\n".encode(errors="surrogateescape"))
        return whole.hexdigest()


class CacheUse:
    """A `kici.sdk.context.CacheUse`."""

    def __init__(self, activity: Activity, files: CacheFiles, cache: Cache) -> None:
        self._activity = activity
        self._files = files
        self._cache = cache
        self._key = files.key(cache.key)
        self.matched_key = ""

    @property
    def hit(self) -> bool:
        return self.matched_key == self._key

    async def __aenter__(self) -> CacheUse:
        if not self._cache.paths:
            print(f"cache: {self._key} is left alone: its files are your own")  # noqa: T201
            return self
        prefixes = [self._files.key(prefix) for prefix in self._cache.restore]
        try:
            self.matched_key = await self._files.restore(self._key, self._cache.paths, prefixes)
        except (KiciError, OSError) as error:
            print(f"cache: {error}; going on without it")  # noqa: T201
        else:
            print(f"cache: restored {self.matched_key}" if self.matched_key else f"cache: no {self._key}")  # noqa: T201
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is not None or self.hit or not self._cache.paths:
            return
        try:
            missing = await self._files.save(self._key, self._cache.paths)
        except (KiciError, OSError) as failure:
            print(f"cache: {failure}; going on without it")  # noqa: T201
        else:
            print(f"cache: saved {self._key}" + (f", without {missing}" if missing else ""))  # noqa: T201

    def __enter__(self) -> CacheUse:
        return Doing(self._activity, self.__aenter__).run()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        Doing(self._activity, lambda: self.__aexit__(kind, error, trace)).run()


@asynccontextmanager
async def _places(root: str) -> AsyncIterator[str]:
    """A directory in which `repo` and `home` lead to the two places."""
    with tempfile.TemporaryDirectory(prefix="kici-cache-") as top:
        os.symlink(root, os.path.join(top, "repo"))
        home = os.path.expanduser("~")
        os.makedirs(home, exist_ok=True)
        os.symlink(home, os.path.join(top, "home"))
        yield top


def _member(path: str) -> str:
    place, below = ("home", path[2:]) if path.startswith("~/") else ("repo", path)
    normal = os.path.normpath(below)
    if normal.startswith(("/", "..")) or normal == ".":
        raise ArtifactFailed(f"the path {path!r} leaves the checkout and the home directory")
    return f"{place}/{normal}"


def _files_below(root: str) -> Iterable[str]:
    for directory, folders, names in os.walk(root):
        if directory == root and ".git" in folders:
            folders.remove(".git")
        folders[:] = [name for name in folders if not name.startswith(SCRATCH_PREFIX)]
        for name in names:
            whole = os.path.join(directory, name)
            if os.path.isfile(whole) and not os.path.islink(whole):
                yield os.path.relpath(whole, root).replace(os.sep, "/")
