"""Sends an artifact or a cache entry: a stream of bytes is cut into parts, of which a few are on their way at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Literal

import msgspec

from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.agent.part_carrier import PIECE_BYTES, PartCarrier
from kici.agent.part_digest import PartDigest
from kici.wire.agent_api import UploadBegin, UploadBegun, UploadComplete, UploadDone

IN_FLIGHT: Final = 2
"""Parts that are being sent; one more is gathered meanwhile."""
_LARGE_BYTES: Final = 65_536
"""A piece that is kept as it came; smaller ones go together, or a part of many would take far more than its bytes."""
_JSON: Final = {"content-type": "application/json"}


async def upload(
    api: JobApi, kind: Literal["artifact", "cache"], name: str, data: AsyncIterator[bytes], what: str
) -> str:
    """Why it was not kept, in words; empty = it was, whole. Raises `TransferFailed`: `what` is the beginning of its
    sentence.

    `data` is not begun where it would be for nothing.
    """
    begin = msgspec.json.encode(UploadBegin(kind, name))
    response = await api.repeated("POST", "uploads", what, content=begin, headers=_JSON)
    begun = msgspec.json.decode(response.content, type=UploadBegun)
    if not begun.upload_id:
        return begun.reason
    path = f"uploads/{begun.upload_id}"
    try:
        async with PartCarrier(api, what, path, begun.urls) as carrier:
            sent = await _send(carrier, data, begun.part_bytes)
        response = await api.repeated(
            "POST", f"{path}/complete", what, content=msgspec.json.encode(sent), headers=_JSON
        )
    except Exception:
        with suppress(TransferFailed):  # it is removed in a day at the latest
            await api.repeated("DELETE", path, what, pauses_s=())
        raise
    return msgspec.json.decode(response.content, type=UploadDone).reason


async def _send(carrier: PartCarrier, data: AsyncIterator[bytes], part_bytes: int) -> UploadComplete:
    digest, size, number = PartDigest(), 0, 0
    gathered: list[bytes | bytearray] = []
    missing = part_bytes
    """Of the part that is gathered."""
    sending: deque[asyncio.Task[None]] = deque()

    async def send(part: list[bytes | bytearray]) -> None:
        nonlocal number
        while len(sending) >= IN_FLIGHT:
            await sending.popleft()
        await digest.add(part)
        sending.append(asyncio.create_task(carrier.send(number, part)))
        number += 1

    try:
        async for piece in data:
            size += len(piece)
            while len(piece) >= missing:
                await send([*gathered, piece[:missing]])
                piece, gathered, missing = piece[missing:], [], part_bytes
            if piece:
                _add(gathered, piece)
                missing -= len(piece)
            while sending and sending[0].done():
                await sending.popleft()
        if gathered:
            await send(gathered)
        while sending:
            await sending.popleft()
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, digest.close(), return_exceptions=True)
    return UploadComplete(size, await digest.hexdigest(), number)


def _add(gathered: list[bytes | bytearray], piece: bytes) -> None:
    last = gathered[-1] if gathered else b""
    if isinstance(last, bytearray) and len(last) + len(piece) <= PIECE_BYTES:
        last += piece
    else:
        gathered.append(piece if len(piece) >= _LARGE_BYTES else bytearray(piece))
