"""The store that is a directory: an object is a file at its key."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.contract import Entry, Method, ObjectExists, ObjectNotFound, check_key
from kici.orchestrator.objects.object_file import PIECE_BYTES, UNFINISHED, Reading, Writing

log = structlog.get_logger(__name__)
_THREADS: Final = 8
T = TypeVar("T")

_AT_ONCE_BYTES: Final = 1024 * 1024
"""Of a stream, written in one turn of a thread."""


class DirectoryObjects:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Its own: where a file system does not answer, others who need a thread get theirs.
        self._threads = ThreadPoolExecutor(_THREADS, "objects")

    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, create: bool = False, synced: bool = True
    ) -> None:
        writing = Writing(self._place(key), synced=synced)
        try:
            await self._tried(key, writing.begin)
            if isinstance(data, bytes):
                await self._tried(key, partial(writing.write, [data]))
            else:
                await self._write(key, writing, data)
            if not await self._tried(key, partial(writing.publish, create=create)):
                raise ObjectExists(f"the object {key!r} exists already")
        finally:
            await asyncio.shield(self._in_thread(writing.close))

    async def get(self, key: str) -> bytes:
        return b"".join([piece async for piece in self.read(key)])

    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        path = self._place(key)
        if end is not None and end <= start:
            return
        reading = Reading(path)
        try:
            await self._there(key, reading.open)
            while end is None or start < end:
                count = PIECE_BYTES if end is None else end - start
                piece = reading.now(start, count)
                if piece is None:
                    piece = await self._tried(key, partial(reading.wait, start, count))
                if not piece:
                    return
                yield piece
                start += len(piece)
        finally:
            await asyncio.shield(self._in_thread(reading.close))

    async def size(self, key: str) -> int | None:
        try:
            found = await self._there(key, self._place(key).stat)
        except ObjectNotFound:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    async def delete(self, key: str) -> None:
        with suppress(ObjectNotFound):
            await self._there(key, partial(self._delete, self._place(key)))

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        waiting = [self._place(prefix)]
        while waiting:
            try:
                folders, entries = await self._there(prefix, partial(self._listed, waiting.pop()))
            except ObjectNotFound:
                continue
            waiting += folders
            for entry in entries:
                yield entry

    async def sign(self, method: Method, key: str, lasts: timedelta) -> str | None:
        check_key(key)
        return None

    async def sweep(self, older_than: timedelta = timedelta(days=1)) -> int:
        return await self._in_thread(partial(self._sweep, time.time() - older_than.total_seconds()))

    def _place(self, key: str) -> Path:
        return self._directory / check_key(key)

    async def _write(self, key: str, writing: Writing, data: AsyncIterable[bytes]) -> None:
        pieces, size = [], 0
        async for piece in data:
            pieces.append(piece)
            size += len(piece)
            if size >= _AT_ONCE_BYTES:
                await self._tried(key, partial(writing.write, pieces))
                pieces, size = [], 0
        await self._tried(key, partial(writing.write, pieces))

    async def _there(self, key: str, work: Callable[[], T]) -> T:
        """As `_tried`, or raises `ObjectNotFound`."""

        def found() -> T | None:
            try:
                return work()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                if not self._directory.is_dir():  # it is the whole store that is not there
                    raise
                return None

        result = await self._tried(key, found)
        if result is None:
            raise ObjectNotFound(f"there is no object {key!r}")
        return result

    async def _tried(self, key: str, work: Callable[[], T]) -> T:
        """In a thread. Raises `Unavailable`."""
        try:
            return await self._in_thread(work)
        except OSError as error:
            # The system's text names paths of the server: it goes to the log, not to a client.
            log.error("the object store failed", key=key, error=str(error))
            raise Unavailable(
                "the object store cannot be used now: look into the orchestrator's log, then try again"
            ) from error

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _delete(self, path: Path) -> bool:
        """With the directories that it leaves empty."""
        path.unlink()
        for folder in path.parents:
            if folder == self._directory:
                break
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # it is not empty
                break
        return True

    def _listed(self, folder: Path) -> tuple[Sequence[Path], Sequence[Entry]]:
        folders, entries = [], []
        with os.scandir(folder) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    folders.append(Path(one.path))
                elif UNFINISHED not in one.name:
                    with suppress(FileNotFoundError):
                        size = one.stat(follow_symlinks=False).st_size
                        entries.append(Entry(os.path.relpath(one.path, self._directory), size))
        return folders, entries

    def _sweep(self, before: float) -> int:
        removed = 0
        for folder, _, names in os.walk(self._directory):
            for name in names:
                if UNFINISHED not in name:
                    continue
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()
                        removed += 1
        return removed
