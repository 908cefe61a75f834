"""Cache entries travel as one stream of bytes (a tar made and unpacked by the runner), never whole in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

from kici.agent.artifacts import PIECE_BYTES
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi, check
from kici.wire.api import CacheChecked, CacheKnown, CacheSaved

ENTRY_HEADER: Final = "x-kici-cache-entry"


async def fetch(api: JobApi, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncIterator[bytes]] | None:
    """The key of the entry that was found, and its bytes, which are to be read to their end. None: there is none.

    Raises `TransferFailed`; so does the stream, also at its end, and then what came is not to be used.
    """
    stream = _entry(api, key, restore)
    found = await anext(stream, None)
    return None if found is None else (found.decode(), stream)


async def _entry(api: JobApi, key: str, restore: tuple[str, ...]) -> AsyncIterator[bytes]:
    """First its key, then its bytes."""
    import httpx  # late, like the client of `JobApi`

    query: dict[str, str | Sequence[str]] = {"key": key, "restore": restore}
    async with api.client() as client, client.stream("GET", f"{api.base}/caches", params=query) as response:
        await check(response, f"the cache {key!r} cannot be read")
        if response.status_code == 204:
            return
        yield unquote(response.headers.get("x-kici-cache-key", "")).encode()
        entry, digest, whole = response.headers.get(ENTRY_HEADER, ""), hashlib.sha256(), False
        try:
            async for piece in response.aiter_bytes(PIECE_BYTES):
                digest.update(piece)
                yield piece
            whole = response.headers.get("etag", "").strip('"') == digest.hexdigest()
        except httpx.HTTPError:  # also less than was announced
            pass
    if not whole:
        raise TransferFailed(await _damage(api, key, entry))


async def _damage(api: JobApi, key: str, entry: str) -> str:
    """What became of an entry that did not arrive whole. The orchestrator looks whether the store itself has it so."""
    what = f"the cache {key!r} arrived damaged"
    response = await api.repeated("POST", "caches/check", what, params={"entry": entry}, pauses_s=(1.0, 2.0))
    if msgspec.json.decode(response.content, type=CacheChecked).damaged:
        return f"{what}: it is damaged in the store, so the entry was removed, and the next save makes a new one"
    return f"{what}: only on its way, the entry itself is sound"


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
