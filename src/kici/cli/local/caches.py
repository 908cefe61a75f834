"""The caches of local runs: files in the user's cache directory, which later runs find by key.

One file holds one entry: its key in the first line, then what the runner has packed. An entry is there whole or not at
all, and never changes. Its modification time is when it was made, its access time when it was last found; the one that
nobody has found for the longest time goes first when they grow over `MAX_BYTES` together.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kici.errors import KiciError

MAX_BYTES = 5 * 1024**3
"""Of all entries of all repositories."""
_PIECE_BYTES = 262_144
_LEFT_S = 86_400
"""A file that is not finished after so long belongs to a run that was killed."""


class CacheTaken(KiciError):
    code = "cache_taken"
    status = 409


class CacheTooLarge(KiciError):
    code = "cache_too_large"
    status = 413


class _Entry(Struct, frozen=True):
    path: Path
    bytes: int
    made: float
    found: float


class Caches:
    """Of one repository; `kind` keeps apart runs whose caches hold different files under one key."""

    def __init__(self, base: Path, root: Path, kind: str, *, max_bytes: int = MAX_BYTES) -> None:
        self._base = base
        self._directory = base / hashlib.sha256(os.fsencode(root.resolve()) + b"\0" + kind.encode()).hexdigest()[:32]
        self._max_bytes = max_bytes

    async def fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
        """The entry of this key, else the newest of the first prefix that finds one; the file is open already."""
        path = self._path(key)
        if not path.is_file():
            found = self._by_prefix(restore)
            if found is None:
                return None
            key, path = found
        try:
            file = path.open("rb")
        except FileNotFoundError:  # it had to go meanwhile
            return None
        with suppress(OSError):
            os.utime(file.fileno(), (time.time(), os.fstat(file.fileno()).st_mtime))
        file.readline()

        async def data() -> AsyncGenerator[bytes, None]:
            with file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

        return key, data()

    async def save(self, key: str, data: AsyncIterator[bytes]) -> None:
        """Raises `CacheTooLarge`, and `CacheTaken` for a key that exists: it stays as it is."""
        path = self._path(key)
        if path.exists():
            raise CacheTaken("there is an entry of that key already")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._directory / f".{os.urandom(8).hex()}"
        try:
            with temporary.open("xb") as file:
                file.write(key.encode() + b"\n")
                async for piece in data:
                    if file.tell() + len(piece) > self._max_bytes:
                        raise CacheTooLarge(f"the cache {key!r} has more than {self._max_bytes:,} bytes: name less")
                    file.write(piece)
            with suppress(FileExistsError):  # another run was first
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._make_room(path)

    def _path(self, key: str) -> Path:
        return self._directory / hashlib.sha256(key.encode()).hexdigest()

    def _by_prefix(self, prefixes: tuple[str, ...]) -> tuple[str, Path] | None:
        known = list(self._known()) if prefixes else []
        for prefix in prefixes:
            matching = [(made, key, path) for made, key, path in known if key.startswith(prefix)]
            if matching:
                _, key, path = max(matching)
                return key, path
        return None

    def _known(self) -> Iterator[tuple[float, str, Path]]:
        for entry in _entries(self._directory.glob("[0-9a-f]*")):
            with suppress(FileNotFoundError), entry.path.open("rb") as file:
                yield entry.made, file.readline(4096).rstrip(b"\n").decode(errors="replace"), entry.path

    def _make_room(self, newest: Path) -> None:
        for left in self._base.glob("*/.*"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    left.unlink()
        entries = sorted(_entries(self._base.glob("*/[0-9a-f]*")), key=lambda entry: entry.found)
        over = sum(entry.bytes for entry in entries) - self._max_bytes
        for entry in entries:
            if over <= 0:
                return
            if entry.path != newest:
                entry.path.unlink(missing_ok=True)
                over -= entry.bytes


def directory() -> Path:
    """`$XDG_CACHE_HOME/kici/caches`, or `~/.cache/kici/caches`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kici" / "caches"


def _entries(paths: Iterator[Path]) -> Iterator[_Entry]:
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            yield _Entry(path, status.st_size, status.st_mtime, status.st_atime)
