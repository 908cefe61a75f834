"""What an agent does to have an artifact or a cache entry kept, without the network."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from kici.orchestrator.caches.uploads import Outcome, Uploads


async def send(uploads: Uploads, job_id: str, attempt: int, kind: str, name: str, data: bytes) -> Outcome:
    """From the beginning to the end."""
    begun = await uploads.begin(job_id, attempt, kind, name)
    if begun.upload is None:
        return Outcome(False, begun.reason)
    step = begun.upload.part_bytes
    count = await send_parts(uploads, job_id, attempt, begun.upload.id, data, step)
    return await complete(uploads, job_id, attempt, begun.upload.id, data, count)


async def send_parts(uploads: Uploads, job_id: str, attempt: int, upload_id: str, data: bytes, step: int) -> int:
    starts = range(0, len(data), step)
    for number, start in enumerate(starts):
        await put(uploads, job_id, attempt, upload_id, number, data[start : start + step])
    return len(starts)


async def put(uploads: Uploads, job_id: str, attempt: int, upload_id: str, number: int, *pieces: bytes) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    await uploads.put(job_id, attempt, upload_id, number, stream())


async def complete(uploads: Uploads, job_id: str, attempt: int, upload_id: str, data: bytes, count: int) -> Outcome:
    return await uploads.complete(job_id, attempt, upload_id, len(data), hashlib.sha256(data).hexdigest(), count)
