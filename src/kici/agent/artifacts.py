"""Artifacts travel as a stream of bytes (a tar made and unpacked by the runner), cut into parts, never whole in
memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from urllib.parse import quote

import msgspec

from kici.agent import download as downloads
from kici.agent import upload as uploads
from kici.agent.errors import Damaged, TransferFailed
from kici.agent.job_api import JobApi
from kici.wire.agent_api import Download


async def upload(api: JobApi, name: str, data: AsyncIterator[bytes]) -> None:
    """Raises `TransferFailed`. It is stored whole or not at all; the orchestrator shows it to others when it is."""
    what = f"artifact {name!r} was not stored"
    refused = await uploads.upload(api, "artifact", name, data, what)
    if refused:
        raise TransferFailed(f"{what}: {refused}")


async def download(api: JobApi, name: str) -> AsyncGenerator[bytes, None]:
    """Raises `TransferFailed`, also in the middle: then what came so far is not to be used."""
    what = f"artifact {name!r} cannot be read"
    response = await api.repeated("GET", f"artifacts/{quote(name, safe='')}", what)
    found = msgspec.json.decode(response.content, type=Download)
    try:
        async with aclosing(downloads.download(api, "artifact", found, what)) as pieces:
            async for piece in pieces:
                yield piece
    except Damaged as error:
        raise TransferFailed(f"artifact {name!r} arrived damaged") from error
