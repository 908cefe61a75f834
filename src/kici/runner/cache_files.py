"""The files of a cache: of the checkout and of the home directory, packed by `tar` under `repo/` and `home/`.

What is restored lies over what is there: exactly the paths of the cache are touched, and what stands beside them stays.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType

from kici.engine import templates
from kici.engine.patterns import matches
from kici.errors import KiciError
from kici.runner.shell import Activity, Doing
from kici.runner.tar import ArtifactFailed, Tar
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
        found: list[str] = []
        with tempfile.TemporaryDirectory(prefix="kici-cache-") as top:
            tar: Tar | None = None
            try:
                async for piece in self._transfers.fetch_cache(key, prefixes, found):
                    tar = tar or Tar(
                        ["tar", "--extract", "--file=-", f"--directory={top}", "--no-same-owner",
                         "--no-same-permissions", "--", *map(_member, paths)]
                    )  # fmt: skip
                    await tar.write(piece)
                if tar is not None:
                    tar.close_input()
                    await tar.read_all()
                    await tar.check(missing_is_fine=True)
            finally:
                if tar is not None:
                    tar.close()
            if found:  # only now: an archive that was cut off touches nothing
                for path in paths:
                    await asyncio.to_thread(_put, os.path.join(top, _member(path)), *self._place(path))
        return found[0] if found else ""

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
            await self._transfers.save_cache(key, _packed(top, there))
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


def _put(source: str, target: str, top: str) -> None:
    """Lay what was unpacked over what is there. Raises `ArtifactFailed`."""
    if not os.path.lexists(source):
        return
    parent = os.path.dirname(target.rstrip("/"))
    os.makedirs(parent, exist_ok=True)
    if not (os.path.realpath(parent) + os.sep).startswith(os.path.realpath(top) + os.sep):
        raise ArtifactFailed(f"{target} leads out of {top} by a symbolic link")
    if os.path.islink(target):
        raise ArtifactFailed(f"{target} is a symbolic link: what is restored would go where it leads")
    done = subprocess.run(
        ["cp", "-a", "-T", "--remove-destination", "--", source, target.rstrip("/")],
        capture_output=True,
        env=os.environ | {"LC_ALL": "C"},
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ArtifactFailed(f"cp failed: {lines[0] if lines else done.returncode}")


async def _packed(top: str, members: Sequence[str]) -> AsyncIterator[bytes]:
    tar = Tar(["tar", "--create", "--file=-", f"--directory={top}", "--", *members])
    try:
        tar.close_input()
        while piece := await tar.read():
            yield piece
        await tar.check()
    finally:
        tar.close()


def _files_below(root: str) -> Iterable[str]:
    for directory, folders, names in os.walk(root):
        if directory == root and ".git" in folders:
            folders.remove(".git")
        for name in names:
            whole = os.path.join(directory, name)
            if os.path.isfile(whole) and not os.path.islink(whole):
                yield os.path.relpath(whole, root).replace(os.sep, "/")
