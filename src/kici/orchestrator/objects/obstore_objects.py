"""The stores that obstore knows: S3 and what speaks like it, memory for tests."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.contract import Entry, Method, ObjectExists, ObjectNotFound, check_key

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Store

log = structlog.get_logger(__name__)

PART_BYTES = 5 * 1024 * 1024
"""Of a multipart upload: S3's minimum, and what a stream holds in memory per part in flight."""
WHOLE_BYTES = 8 * 1024 * 1024
"""A stream that has no more is one request."""
PIECE_BYTES = 256 * 1024


class ObstoreObjects:
    """`signer` is the same bucket under the address by which others reach it."""

    def __init__(self, store: ObjectStore, *, signer: S3Store | None = None) -> None:
        import obstore

        self._obs: Any = obstore
        self._failures = (obstore.exceptions.BaseError, OSError)
        self._store = store
        self._signer = signer

    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, create: bool = False, synced: bool = True
    ) -> None:
        check_key(key)
        source = data if isinstance(data, bytes) else await _gathered(aiter(data))
        try:
            await self._obs.put_async(
                self._store,
                key,
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
        pieces = self._streamed(key, start, end)
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
        """Nothing: a lifecycle rule of the bucket does it (abort incomplete multipart uploads)."""
        return 0

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

    def __init__(self, first: list[bytes], rest: AsyncIterator[bytes]) -> None:
        self._first = first
        self._rest = rest
        self.failure: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._first:
            yield piece
        self._first = []
        try:
            async for piece in self._rest:
                if piece:
                    yield piece
        except BaseException as error:
            self.failure = error
            raise


async def _gathered(data: AsyncIterator[bytes]) -> bytes | _Source:
    """The whole of it, if it is that small."""
    first, size = [], 0
    async for piece in data:
        if piece:
            first.append(piece)
            size += len(piece)
        if size > WHOLE_BYTES:
            return _Source(first, data)
    return b"".join(first)
