"""What an agent sends and reads in the tests of artifacts and cache entries."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from kici.agent import caches
from kici.agent.job_api import JobApi

PART = 8 * 1024 * 1024
DATA = os.urandom(2 * PART + 1_000_000)
"""Three parts, the last of them short."""


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 262_144):
        yield data[at : at + 262_144]


async def read(api: JobApi, key: str = "k") -> bytes | None:
    """A cache entry, whole; None = there is none."""
    found = await caches.fetch(api, key, ())
    return None if found is None else b"".join([piece async for piece in found[1]])
