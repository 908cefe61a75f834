"""Bare copies of remote repositories, kept below the data directory so that a fetch brings only what is new.

A mirror is a cache: it holds commits and trees, files only where they were read, and nothing that cannot be fetched
again, so one that is damaged or has grown too many packs is thrown away. A lock file beside it keeps other fetches out,
also those of other processes; what a killed git left locked inside is removed by the next holder.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kici.forges.git import command
from kici.forges.git.errors import GitUnavailable, classify
from kici.forges.git.remote import Remote, check_url, credentials

MAX_PACKS = 200
_LOCK_PAUSE_S = 0.05
_KINDS = ("trees", "history")
_TIP = "refs/kici/tip"
"""Keeps the newest commit, so that the next fetch can say what is here already."""


class Mirrors:
    def __init__(self, directory: Path, *, timeout_s: float = command.DEFAULT_TIMEOUT_S) -> None:
        self._directory = directory
        self._timeout_s = timeout_s

    async def with_trees(self, remote: Remote, shas: Sequence[str]) -> Path:
        """A mirror that has these commits and their trees, without their past. Files come when they are read."""
        return await self._fetched(remote, shas, ["--depth=1", "--filter=blob:none"], "trees")

    async def with_history(self, remote: Remote, shas: Sequence[str]) -> Path:
        """A mirror that has these commits and all that came before them, without trees and files."""
        return await self._fetched(remote, shas, ["--filter=tree:0"], "history")

    async def _fetched(self, remote: Remote, shas: Sequence[str], options: Sequence[str], kind: str) -> Path:
        check_url(remote.url)
        mirror = self._path(remote, kind)
        async with self._locked(mirror):
            return await self._fetch(mirror, remote, shas, options)

    async def discard(self, remote: Remote) -> None:
        """Throw away what is here of the remote: the next fetch starts anew."""
        for kind in _KINDS:
            mirror = self._path(remote, kind)
            async with self._locked(mirror):
                await _remove(mirror)

    def _path(self, remote: Remote, kind: str) -> Path:
        return self._directory / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:32]}-{kind}.git"

    async def _fetch(self, mirror: Path, remote: Remote, shas: Sequence[str], options: Sequence[str]) -> Path:
        if mirror.is_dir() and _packs(mirror) > MAX_PACKS:
            await _remove(mirror)
        if not mirror.is_dir():
            await _create(mirror, remote.url)
        refspecs = [f"+{shas[-1]}:{_TIP}", *shas[:-1]]
        quiet = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"]
        done = await command.run(
            ["--git-dir", str(mirror), "fetch", *quiet, *options, "origin", *refspecs],
            config=credentials(remote),
            timeout_s=self._timeout_s,
        )
        if done.code:
            raise classify(f"fetching {', '.join(shas)}", done.stderr)
        return mirror

    @asynccontextmanager
    async def _locked(self, mirror: Path) -> AsyncIterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(mirror.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                async with asyncio.timeout(self._timeout_s * 2):
                    # Nobody tells when a file lock is given up.
                    while not _try_lock(descriptor):  # noqa: ASYNC110
                        await asyncio.sleep(_LOCK_PAUSE_S)
            except TimeoutError as error:
                raise GitUnavailable("another fetch from the same repository does not end") from error
            for leftover in ("shallow.lock", "config.lock", "packed-refs.lock", f"{_TIP}.lock"):
                (mirror / leftover).unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _packs(mirror: Path) -> int:
    return sum(1 for _ in (mirror / "objects" / "pack").glob("*.pack"))


async def _create(mirror: Path, url: str) -> None:
    """Made beside and renamed, so that a mirror which is there is whole."""
    new = Path(tempfile.mkdtemp(prefix=f".{mirror.name}.", dir=mirror.parent))
    try:
        done = await command.run(["init", "--quiet", "--bare", "--template=", str(new)])
        if done.code:
            raise classify("making a mirror", done.stderr)
        settings = {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.url": url,
            "remote.origin.promisor": "true",
        }
        for key, value in settings.items():
            done = await command.run(["--git-dir", str(new), "config", key, value])
            if done.code:
                raise classify("making a mirror", done.stderr)
        new.rename(mirror)
    except BaseException:
        await _remove(new)
        raise


async def _remove(directory: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
