"""Artifacts travel as one stream of bytes (a tar made and unpacked by the runner), never whole in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from urllib.parse import quote

from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi, check

PIECE_BYTES = 262_144


async def upload(api: JobApi, name: str, data: AsyncIterator[bytes]) -> None:
    """Raises `TransferFailed`. It is stored whole or not at all; the orchestrator shows it to others when it is."""
    async with api.client() as client:
        response = await client.put(_url(api, name), content=data)
        await check(response, f"artifact {name!r} was not stored")


async def download(api: JobApi, name: str) -> AsyncIterator[bytes]:
    """Raises `TransferFailed`, also in the middle: then what came so far is not to be used."""
    digest = hashlib.sha256()
    async with api.client() as client, client.stream("GET", _url(api, name)) as response:
        await check(response, f"artifact {name!r} cannot be read")
        async for piece in response.aiter_bytes(PIECE_BYTES):
            digest.update(piece)
            yield piece
        if response.headers.get("etag", "").strip('"') != digest.hexdigest():
            raise TransferFailed(f"artifact {name!r} arrived damaged")


def _url(api: JobApi, name: str) -> str:
    return f"{api.base}/artifacts/{quote(name, safe='')}"
