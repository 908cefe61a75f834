"""The stores that obstore knows: a directory, S3 and what speaks like it, memory for tests."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.contract import Entry, Method, ObjectExists, ObjectNotFound, check_key
from kici.orchestrator.settings import Settings, SettingsError

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Store

log = structlog.get_logger(__name__)

PART_BYTES = 5 * 1024 * 1024
"""Of a multipart upload: S3's minimum, and what a stream holds in memory per part in flight."""
PIECE_BYTES = 256 * 1024
RANGE_BYTES = 1024 * 1024
"""Read from a file at once."""
_UNFINISHED = re.compile(r"#\d+$")


class ObstoreObjects:
    """`directory` is set for the file system only: there `sweep` finds what killed uploads left. `signer` is the same
    bucket under the address by which others reach it."""

    def __init__(self, store: ObjectStore, *, directory: Path | None = None, signer: S3Store | None = None) -> None:
        import obstore

        self._obs: Any = obstore
        self._failures = (obstore.exceptions.BaseError, OSError)
        self._store = store
        self._directory = directory
        self._signer = signer

    async def put(self, key: str, data: bytes | AsyncIterable[bytes], *, create: bool = False) -> None:
        source = data if isinstance(data, bytes) else _Source(data)
        try:
            await self._obs.put_async(
                self._store,
                check_key(key),
                source,
                use_multipart=not isinstance(source, bytes),
                chunk_size=PART_BYTES,
                max_concurrency=2,
                mode="create" if create else "overwrite",
            )
        except self._failures as error:
            if isinstance(source, _Source) and source.failure is not None:
                raise source.failure from None
            raise self._translated(error, key) from error

    async def get(self, key: str) -> bytes:
        try:
            found = await self._obs.get_async(self._store, check_key(key))
            return bytes(await found.bytes_async())
        except self._failures as error:
            raise self._translated(error, key) from error

    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        check_key(key)
        if end is not None and end <= start:
            return
        pieces = self._streamed(key, start, end) if self._directory is None else self._by_ranges(key, start, end)
        while True:
            try:
                piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except self._failures as error:
                raise self._translated(error, key) from error
            yield piece

    async def _streamed(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        options: dict[str, Any] | None = None
        if end is not None:
            options = {"range": (start, end)}
        elif start:
            options = {"range": {"offset": start}}
        found = await self._obs.get_async(self._store, key, options=options)
        async for piece in found.stream(min_chunk_size=PIECE_BYTES):
            yield bytes(piece)

    async def _by_ranges(self, key: str, start: int, end: int | None) -> AsyncIterator[bytes]:
        """The library streams a file in pieces of 8 KiB, each by a thread of its own: eight times as slow."""
        size = int((await self._obs.head_async(self._store, key))["size"])
        last = size if end is None else min(end, size)
        for at in range(start, last, RANGE_BYTES):
            yield bytes(await self._obs.get_range_async(self._store, key, start=at, end=min(at + RANGE_BYTES, last)))

    async def size(self, key: str) -> int | None:
        try:
            return int((await self._obs.head_async(self._store, check_key(key)))["size"])
        except FileNotFoundError:
            return None
        except self._failures as error:
            raise self._translated(error, key) from error

    async def delete(self, key: str) -> None:
        try:
            await self._obs.delete_async(self._store, check_key(key))
        except FileNotFoundError:
            return
        except self._failures as error:
            raise self._translated(error, key) from error

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        pages = aiter(self._obs.list(self._store, check_key(prefix)))
        while True:
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                return
            except self._failures as error:
                raise self._translated(error, prefix) from error
            for found in page:
                yield Entry(found["path"], found["size"])

    async def sign(self, method: Method, key: str, lasts: timedelta) -> str | None:
        check_key(key)
        if self._signer is None:
            return None
        try:
            return str(await self._obs.sign_async(self._signer, method, key, lasts))
        except self._failures as error:
            raise self._translated(error, key) from error

    async def sweep(self, older_than: timedelta = timedelta(days=1)) -> int:
        """Remove what killed uploads left in the directory: nobody can read it, it only fills the disk.

        In a bucket a lifecycle rule does that (abort incomplete multipart uploads).
        """
        if self._directory is None:
            return 0
        return await asyncio.to_thread(_sweep, self._directory, time.time() - older_than.total_seconds())

    def _translated(self, error: Exception, key: str) -> Exception:
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound(f"there is no object {key!r}")
        if isinstance(error, self._obs.exceptions.AlreadyExistsError):
            return ObjectExists(f"the object {key!r} exists already")
        # The library's text names hosts and paths of the server: it goes to the log, not to a client.
        log.error("the object store failed", key=key, error=str(error).split("\n", 1)[0])
        return Unavailable("the object store cannot be used now: look into the orchestrator's log, then try again")


class _Source:
    """Hands a stream to the library and keeps what it raised, whatever the library makes of it."""

    def __init__(self, data: AsyncIterable[bytes]) -> None:
        self._data = data
        self.failure: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._data:
                if piece:
                    yield piece
        except BaseException as error:
            self.failure = error
            raise


def open_objects(settings: Settings) -> ObstoreObjects:
    """The store that the settings name. Raises `SettingsError` where they do not fit together."""
    from obstore.store import LocalStore

    if settings.storage_type == "filesystem":
        directory = settings.storage_fs_path or settings.data_dir / "objects"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ObstoreObjects(LocalStore(directory, automatic_cleanup=True), directory=directory)
    if settings.storage_type == "s3":
        if not settings.storage_bucket:
            raise SettingsError("KICI_STORAGE_TYPE=s3 needs KICI_STORAGE_BUCKET")
        external = settings.storage_external_endpoint or settings.storage_endpoint
        return ObstoreObjects(_bucket(settings, settings.storage_endpoint), signer=_bucket(settings, external))
    raise SettingsError(f"KICI_STORAGE_TYPE is {settings.storage_type!r}: use filesystem or s3")


def _bucket(settings: Settings, endpoint: str) -> S3Store:
    from obstore.store import S3Store

    options: dict[str, Any] = {}
    if settings.storage_region:
        options["region"] = settings.storage_region
    if endpoint:
        options["endpoint"] = endpoint
    return S3Store(
        settings.storage_bucket,
        prefix=settings.storage_prefix.strip("/") or None,
        client_options={"allow_http": endpoint.startswith("http://")},
        **options,
    )


def _sweep(directory: Path, before: float) -> int:
    removed = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if not _UNFINISHED.search(name):
                continue
            try:
                if path.stat().st_mtime < before:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue
    return removed
