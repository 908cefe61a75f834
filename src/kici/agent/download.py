"""Reads an artifact or a cache entry: its parts in order, one ahead, compared with what was saved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, Literal

from kici.agent.errors import Damaged
from kici.agent.job_api import JobApi
from kici.agent.part_carrier import PartCarrier
from kici.agent.part_digest import PartDigest
from kici.wire.agent_api import Download

IN_FLIGHT: Final = 2
"""Parts that are being read or wait to be taken, beside the one that is taken."""


async def download(
    api: JobApi, kind: Literal["artifact", "cache"], found: Download, what: str
) -> AsyncGenerator[bytes, None]:
    """Its bytes. Raises `Damaged`, at the end at the latest, or `TransferFailed`: then what came is not to be used."""
    digest = PartDigest()
    coming: deque[asyncio.Task[list[bytes]]] = deque()
    starts = deque(range(0, found.size_bytes, found.part_bytes))
    async with PartCarrier(api, what, f"downloads/{found.entry}", found.urls, params={"kind": kind}) as carrier:
        try:
            while starts or coming:
                while starts and len(coming) < IN_FLIGHT:
                    start = starts.popleft()
                    length = min(found.part_bytes, found.size_bytes - start)
                    coming.append(asyncio.create_task(carrier.fetch(start // found.part_bytes, length)))
                part = await coming.popleft()
                await digest.add(part)
                for piece in part:
                    yield piece
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, digest.close(), return_exceptions=True)
    if await digest.hexdigest() != found.sha256:
        raise Damaged(f"{what}: its bytes are not those that were saved")
