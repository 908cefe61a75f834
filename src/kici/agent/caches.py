"""Cache entries travel as a stream of bytes (a tar made and unpacked by the runner), cut into parts, never whole in
memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec

from kici.agent.download import download
from kici.agent.errors import Damaged, TransferFailed
from kici.agent.job_api import JobApi
from kici.agent.upload import upload
from kici.wire.agent_api import CacheChecked, Download


async def fetch(api: JobApi, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
    """The key of the entry that was found, and its bytes, which are to be read to their end. None: there is none.

    Raises `TransferFailed`; so does the stream, also at its end, and then what came is not to be used.
    """
    params = {"key": key, "restore": restore}
    response = await api.repeated("GET", "caches", f"the cache {key!r} cannot be read", params=params)
    if response.status_code == 204:
        return None
    found = msgspec.json.decode(response.content, type=Download)
    return found.name, _entry(api, key, found)


async def _entry(api: JobApi, key: str, found: Download) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(download(api, "cache", found, f"the cache {key!r} cannot be read")) as pieces:
            async for piece in pieces:
                yield piece
    except Damaged as error:
        raise TransferFailed(await _damage(api, key, found.entry)) from error


async def _damage(api: JobApi, key: str, entry: str) -> str:
    """What became of an entry that did not arrive whole. The orchestrator looks whether the store itself has it so."""
    what = f"the cache {key!r} arrived damaged"
    response = await api.repeated("POST", "caches/check", what, params={"entry": entry}, pauses_s=(1.0, 2.0))
    if msgspec.json.decode(response.content, type=CacheChecked).damaged:
        return f"{what}: it is damaged in the store, so the entry was removed, and the next save makes a new one"
    return f"{what}: only on its way, the entry itself is sound"


async def save(api: JobApi, key: str, data: AsyncIterator[bytes]) -> str:
    """Why it was not kept, in words; empty = it was. Raises `TransferFailed`.

    Of a key that exists `data` is not begun.
    """
    return await upload(api, "cache", key, data, f"the cache {key!r} was not saved")
