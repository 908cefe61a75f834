"""Cache entries travel as one stream of bytes (a tar made and unpacked by the runner), never whole in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from urllib.parse import unquote

import msgspec

from kici.agent.artifacts import PIECE_BYTES
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi, check
from kici.wire.api import CacheKnown, CacheSaved


async def fetch(api: JobApi, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncIterator[bytes]] | None:
    """The key of the entry that was found, and its bytes, which are to be read to their end. None: there is none.

    Raises `TransferFailed`; so does the stream, also at its end, and then what came is not to be used.
    """
    stream = _entry(api, key, restore)
    found = await anext(stream, None)
    return None if found is None else (found.decode(), stream)


async def _entry(api: JobApi, key: str, restore: tuple[str, ...]) -> AsyncIterator[bytes]:
    """First its key, then its bytes."""
    query: dict[str, str | Sequence[str]] = {"key": key, "restore": restore}
    async with api.client() as client, client.stream("GET", f"{api.base}/caches", params=query) as response:
        await check(response, f"the cache {key!r} cannot be read")
        if response.status_code == 204:
            return
        yield unquote(response.headers.get("x-kici-cache-key", "")).encode()
        digest = hashlib.sha256()
        async for piece in response.aiter_bytes(PIECE_BYTES):
            digest.update(piece)
            yield piece
        if response.headers.get("etag", "").strip('"') != digest.hexdigest():
            raise TransferFailed(f"the cache {key!r} arrived damaged")


async def save(api: JobApi, key: str, data: AsyncIterator[bytes]) -> str:
    """Why it was not kept, in words; empty = it was. Raises `TransferFailed`.

    `data` is read to its end also where it is for nothing: a key that exists is not sent.
    """
    what = f"the cache {key!r} was not saved"
    response = await api.repeated("GET", "caches/known", what, params={"key": key}, pauses_s=(1.0, 2.0))
    if msgspec.json.decode(response.content, type=CacheKnown).known:
        async for _ in data:
            pass
        return "there is an entry of that key already"
    async with api.client() as client:
        response = await client.put(f"{api.base}/caches", content=data, params={"key": key})
        await check(response, what)
        return msgspec.json.decode(response.content, type=CacheSaved).reason
