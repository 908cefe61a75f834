"""Artifacts on their way between a runner and who keeps them, as the runner asks for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from kici.errors import KiciError
from kici.wire.runner import ArtifactBegin, ArtifactData, ArtifactEnd, ArtifactFetch, FromHost, Reply

MAX_AT_ONCE = 8
PIECE_BYTES = 262_144
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +@=,()-]{0,199}")
_AHEAD = 8
"""Pieces of an upload that wait to be kept."""


class Keeper(Protocol):
    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None: ...
    def download(self, name: str) -> AsyncIterator[bytes]: ...


class ProtocolBroken(KiciError):
    code = "protocol_broken"
    status = 400


class Transfers:
    def __init__(self, keeper: Keeper, send: Callable[[FromHost], Awaitable[None]]) -> None:
        self._keeper = keeper
        self._send = send
        self._uploads: dict[int, asyncio.Queue[bytes | None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last = -1
        """Requests are numbered upwards, so that an answered one is not taken for a new one."""

    async def heard(self, message: ArtifactBegin | ArtifactData | ArtifactEnd | ArtifactFetch) -> None:
        """Waits while an upload is slow to be kept. Raises `ProtocolBroken`."""
        request = message.request
        match message:
            case ArtifactBegin(name=name):
                self._check_new(request)
                self._uploads[request] = asyncio.Queue(_AHEAD)
                self._begin(request, self._upload(request, name))
            case ArtifactFetch(name=name):
                self._check_new(request)
                self._begin(request, self._download(request, name))
            case ArtifactData(data=data):
                if request not in self._uploads or len(data) > PIECE_BYTES:
                    raise ProtocolBroken(f"it sent {len(data):,} bytes of an artifact that it does not upload")
                await self._uploads[request].put(data)
            case ArtifactEnd():
                if request not in self._uploads:
                    raise ProtocolBroken("it sent the end of an artifact that it does not upload")
                await self._uploads.pop(request).put(None)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in list(self._tasks.values()):
            with suppress(asyncio.CancelledError):
                await task

    def _check_new(self, request: int) -> None:
        if request <= self._last or len(self._tasks) >= MAX_AT_ONCE:
            raise ProtocolBroken(f"it sent request {request} twice, or more than {MAX_AT_ONCE} at once")
        self._last = request

    def _begin(self, request: int, work: Awaitable[str]) -> None:
        async def answered() -> None:
            try:
                try:
                    error = await work
                except Exception:  # noqa: BLE001 - the runner must not wait for an answer that never comes
                    import structlog  # late: `kici run local` starts without it

                    structlog.get_logger(__name__).exception("an artifact could not be transferred")
                    error = "an internal error of the host: see its log"
                with suppress(OSError):  # the runner is gone
                    await self._send(Reply(request, error))
            finally:
                self._tasks.pop(request, None)

        self._tasks[request] = asyncio.create_task(answered())

    async def _upload(self, request: int, name: str) -> str:
        pieces = self._uploads[request]

        async def data() -> AsyncIterator[bytes]:
            while (piece := await pieces.get()) is not None:
                yield piece

        stream = data()
        error = _refusal(name)
        if not error:
            try:
                await self._keeper.upload(name, stream)
            except (KiciError, OSError) as failure:
                error = str(failure)
        async for _ in stream:  # what a refused upload still sends
            pass
        return error

    async def _download(self, request: int, name: str) -> str:
        error = _refusal(name)
        if not error:
            try:
                async for data in self._keeper.download(name):
                    for start in range(0, len(data), PIECE_BYTES):
                        await self._send(ArtifactData(request, data[start : start + PIECE_BYTES]))
            except (KiciError, OSError) as failure:
                error = str(failure)
        return error


def _refusal(name: str) -> str:
    if _NAME.fullmatch(name) and name.strip(". ") == name:
        return ""
    return f"{name!r} cannot be the name of an artifact: write 1 to 200 letters, digits and any of . _ - + @ = , ( )"
