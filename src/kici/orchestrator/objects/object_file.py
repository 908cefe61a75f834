"""The file of one object: written beside its place, then renamed; read without a thread where the kernel has it in
memory.

Threads do what may wait for the disk. Whoever is cancelled meanwhile closes the file in a thread too, after the other.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 256 * 1024
"""Read and written at once. In larger writes the kernel takes larger pages for its cache, and is half as fast where
their memory was not in use before."""
UNFINISHED: Final = "#"
"""In the name of a file that is being written; no key has it."""
_TRIES: Final = 100
"""To make directories that others remove because they are empty."""


class Writing:
    """Its methods wait for the disk, and for one another. Raises `OSError`. `close` at the end, always."""

    def __init__(self, path: Path, *, synced: bool) -> None:
        """`synced`: once it is published it also outlasts a power failure."""
        self._path = path
        self._beside = path.with_name(UNFINISHED + secrets.token_hex(12))
        self._synced = synced
        self._lock = threading.Lock()
        self._file: int | None = None
        self._closed = False

    def begin(self) -> None:
        with self._lock:
            if self._closed:  # whoever wanted it was cancelled before this thread had its turn
                return
            for tried in range(1, _TRIES + 1):
                try:
                    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._file = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                except FileNotFoundError:
                    if tried == _TRIES:
                        raise
                else:
                    return

    def write(self, pieces: Sequence[bytes]) -> None:
        with self._lock:
            for piece in pieces:
                rest = memoryview(piece)
                while rest and self._file is not None:
                    rest = rest[os.write(self._file, rest[:PIECE_BYTES]) :]

    def publish(self, *, create: bool) -> bool:
        """At its place. False: with `create` it must be free, and is not."""
        with self._lock:
            if self._file is None:
                return False
            if self._synced:
                os.fsync(self._file)
            if not create:
                os.replace(self._beside, self._path)
            else:
                try:
                    os.link(self._beside, self._path)
                except FileExistsError:
                    return False
            if self._synced:
                _sync(self._path.parent)
            return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None
                with suppress(FileNotFoundError):
                    self._beside.unlink()


class Reading:
    """`close` at the end, always."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._closed = False
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def open(self) -> bool:
        """Waits for the disk. Raises `OSError`, `IsADirectoryError` too. False: it is closed already."""
        with self._lock:
            if self._closed:
                return False
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            if os.path.isdir(self._path):
                raise IsADirectoryError(self._path)
            return True

    def now(self, at: int, count: int) -> bytes | None:
        """Up to `PIECE_BYTES` that are in memory; none at the end. None if the disk has to be asked."""
        if self._file is None or not hasattr(os, "RWF_NOWAIT"):
            return None
        space = self._buffer[: min(count, PIECE_BYTES)]
        try:
            return bytes(space[: os.preadv(self._file, [space], at, os.RWF_NOWAIT)])
        except OSError:  # also of file systems that do not know the question
            return None

    def wait(self, at: int, count: int) -> bytes:
        """As `now`, however long it takes. Raises `OSError`."""
        with self._lock:
            return b"" if self._file is None else os.pread(self._file, min(count, PIECE_BYTES), at)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _sync(folder: Path) -> None:
    """The names in it."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
