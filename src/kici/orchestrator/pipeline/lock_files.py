"""Lock files at a commit: fetched over git, decoded, validated, and kept while they are used."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kici.engine import lockfile, plan
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile
from kici.forges.git.objects import Blob, TooLarge
from kici.forges.git.remote import Remote

MAX_CACHED_BYTES = 64 * 1024 * 1024
_LARGE_BYTES = 65_536
_SHOWN_PROBLEMS = 20


class Found(Struct, frozen=True):
    lock: LockFile
    sha256: str
    """Of the file's bytes."""
    size: int


class Missing(Struct, frozen=True):
    message: str


class Corrupt(Struct, frozen=True):
    message: str


LockAnswer = Found | Missing | Corrupt


class ReadsFiles(Protocol):
    """The part of git that is needed here."""

    async def blobs(self, remote: Remote, sha: str, paths: Sequence[str], *, max_bytes: int) -> dict[str, Blob]: ...


class LockFiles:
    """A commit never changes, so what was found at one is kept: the `limit` last used, and at most 64 MiB of them."""

    def __init__(self, repositories: ReadsFiles, *, limit: int) -> None:
        self._repositories = repositories
        self._limit = limit
        self._found: OrderedDict[tuple[str, str], Found] = OrderedDict()
        self._bytes = 0

    async def at(self, remote: Remote, sha: str) -> LockAnswer:
        """Raises a `GitError` if the repository cannot be asked: that is an outage, and says nothing about the file."""
        key = (remote.url, sha)
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        blobs = await self._repositories.blobs(remote, sha, [lockfile.PATH], max_bytes=lockfile.MAX_BYTES)
        blob = blobs[lockfile.PATH]
        if blob is None:
            return Missing(f"there is no {lockfile.PATH} at {sha[:12]}: run `kici compile` and commit it")
        if isinstance(blob, TooLarge):
            return Corrupt(
                f"{lockfile.PATH} has {blob.size:,} bytes at {sha[:12]}; the limit is {lockfile.MAX_BYTES:,}:"
                " split the workflows"
            )
        answer = await asyncio.to_thread(read, blob) if len(blob) > _LARGE_BYTES else read(blob)
        if isinstance(answer, Found):
            self._keep(key, answer)
        return answer

    def _keep(self, key: tuple[str, str], found: Found) -> None:
        replaced = self._found.pop(key, None)
        self._bytes += found.size - (replaced.size if replaced else 0)
        self._found[key] = found
        while len(self._found) > self._limit or (self._bytes > MAX_CACHED_BYTES and len(self._found) > 1):
            _, oldest = self._found.popitem(last=False)
            self._bytes -= oldest.size


def read(data: bytes) -> Found | Corrupt:
    """Decode strictly and check everything that the schema cannot say."""
    try:
        lock = lockfile.decode(data)
    except LockFileError as error:
        return Corrupt(str(error))
    problems = plan.validate(lock)
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = "; ".join(problems[:_SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        return Corrupt(f"{lockfile.PATH} cannot be used: {shown}")
    return Found(lock, hashlib.sha256(data).hexdigest(), len(data))
