"""What a runner asks of the host and is answered: artifacts and caches on their way, secret outputs, events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kici.agent.handed_over import MAX_SECRET_BYTES, HandedOver, refuse_key
from kici.agent.step_order import ProtocolBroken
from kici.engine.lockfile import Level
from kici.errors import KiciError
from kici.wire.runner import (
    ArtifactBegin,
    ArtifactData,
    ArtifactEnd,
    ArtifactFetch,
    CacheBegin,
    CacheFetch,
    Emit,
    FromHost,
    Reply,
    SecretOutput,
)

MAX_AT_ONCE = 40
"""Requests that are not answered yet; several steps of a parallel group may ask at the same time."""
PIECE_BYTES = 262_144
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +@=,()-]{0,199}")
_AHEAD = 8
"""Pieces of an upload that wait to be kept."""

Request = ArtifactBegin | ArtifactData | ArtifactEnd | ArtifactFetch | CacheFetch | CacheBegin | SecretOutput | Emit


class Keeper(Protocol):
    """Each raises `KiciError` or `OSError` with a message for the step."""

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None: ...
    def download(self, name: str) -> AsyncIterator[bytes]: ...

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncIterator[bytes]] | None:
        """The key that was found, by the key itself or else by the first prefix that finds one, and its data."""

    async def cache_save(self, key: str, data: AsyncIterator[bytes]) -> None:
        """A key that exists stays as it is, which is told like any other reason why one is not kept."""

    async def secret_output(self, name: str, value: str) -> None: ...

    async def emit(self, name: str, payload: Any, key: str) -> str:
        """The id of the event; of the same key it is the same one, and nothing is emitted again."""

    def mask(self, value: str) -> None: ...


class BrokenOff(KiciError):
    """The runner could not send the rest."""

    code = "upload_broken_off"
    status = 422


class _Pieces(asyncio.Queue[bytes | BrokenOff | None]):
    """Of one upload; None is its end."""


class Transfers:
    def __init__(
        self,
        keeper: Keeper,
        send: Callable[[FromHost], Awaitable[None]],
        refusal: Callable[[str, Level], str] = lambda kind, level: "",
    ) -> None:
        """`refusal`: why the job may not do something, see `engine.permissions`. An orchestrator asks that itself; here
        it is asked so that the answer is the same without one, and nothing is sent in vain."""
        self._keeper = keeper
        self._send = send
        self._refusal = refusal
        self._handed_over = HandedOver()
        self._uploads: dict[int, _Pieces] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last = -1
        """Requests are numbered upwards, so that an answered one is not taken for a new one."""

    async def heard(self, message: Request) -> None:
        """Waits while an upload is slow to be kept. Raises `ProtocolBroken`."""
        request = message.request
        match message:
            case ArtifactData(data=data):
                if request not in self._uploads or len(data) > PIECE_BYTES:
                    raise ProtocolBroken(f"it sent {len(data):,} bytes of an artifact that it does not upload")
                await self._uploads[request].put(data)
                return
            case ArtifactEnd(broken=broken):
                if request not in self._uploads:
                    raise ProtocolBroken("it sent the end of an artifact that it does not upload")
                await self._uploads.pop(request).put(BrokenOff("it was not sent to its end") if broken else None)
                return
        self._check_new(request)
        match message:
            case ArtifactBegin(name=name):
                work = self._take(
                    request,
                    self._refusal("artifacts", Level.WRITE) or _refusal(name),
                    partial(self._keeper.upload, name),
                )
            case CacheBegin(key=key):
                work = self._take(
                    request,
                    self._refusal("caches", Level.WRITE) or refuse_key(key),
                    partial(self._keeper.cache_save, key),
                )
            case ArtifactFetch(name=name):
                work = self._give(request, name)
            case CacheFetch(key=key, restore=restore):
                work = self._restore(request, key, restore)
            case SecretOutput(name=name, value=value):
                if len(value) <= MAX_SECRET_BYTES:  # a longer one is refused
                    self._keeper.mask(value)  # before anything else is heard: what comes next may print it
                work = self._keep_secret(request, name, value)
            case Emit(name=name, payload=payload, key=key):
                work = self._emit(request, name, payload, key)
        self._begin(request, work)

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

    def _begin(self, request: int, work: Coroutine[Any, Any, Reply]) -> None:
        async def answered() -> None:
            try:
                try:
                    reply = await work
                except (KiciError, OSError) as failure:
                    reply = Reply(request, str(failure))
                except Exception:  # noqa: BLE001 - the runner must not wait for an answer that never comes
                    import structlog  # late: `kici run local` starts without it

                    structlog.get_logger(__name__).exception("a runner could not be answered")
                    reply = Reply(request, "an internal error of the host: see its log")
                with suppress(OSError):  # the runner is gone
                    await self._send(reply)
            finally:
                self._tasks.pop(request, None)

        self._tasks[request] = asyncio.create_task(answered())

    def _take(
        self, request: int, refused: str, keep: Callable[[AsyncIterator[bytes]], Awaitable[None]]
    ) -> Coroutine[Any, Any, Reply]:
        pieces = _Pieces(_AHEAD)
        self._uploads[request] = pieces  # now: what is sent next may be heard before the coroutine has begun

        async def take() -> Reply:
            stream, error = _stream(pieces), refused
            if not refused:
                try:
                    await keep(stream)
                except (KiciError, OSError) as failure:
                    error = str(failure)
            with suppress(BrokenOff):
                async for _ in stream:  # what a refused upload still sends
                    pass
            return Reply(request, error)

        return take()

    async def _give(self, request: int, name: str) -> Reply:
        error = self._refusal("artifacts", Level.READ) or _refusal(name)
        if not error:
            await self._send_all(request, self._keeper.download(name))
        return Reply(request, error)

    async def _restore(self, request: int, key: str, restore: tuple[str, ...]) -> Reply:
        if error := self._refusal("caches", Level.READ) or refuse_key(key, restore):
            return Reply(request, error)
        found = await self._keeper.cache_fetch(key, restore)
        if found is None:
            return Reply(request)
        found_key, data = found
        await self._send_all(request, data)
        return Reply(request, value=found_key)

    async def _send_all(self, request: int, data: AsyncIterator[bytes]) -> None:
        async for piece in data:
            for start in range(0, len(piece), PIECE_BYTES):
                await self._send(ArtifactData(request, piece[start : start + PIECE_BYTES]))

    async def _keep_secret(self, request: int, name: str, value: str) -> Reply:
        error = self._refusal("secret_outputs", Level.WRITE) or self._handed_over.refuse_secret(name, value)
        if not error:
            await self._keeper.secret_output(name, value)
        return Reply(request, error)

    async def _emit(self, request: int, name: str, payload: Any, key: str) -> Reply:
        if error := self._refusal("events", Level.WRITE) or self._handed_over.refuse_event(name, payload):
            return Reply(request, error)
        return Reply(request, value=await self._keeper.emit(name, payload, key))


async def _stream(pieces: _Pieces) -> AsyncIterator[bytes]:
    """Raises `BrokenOff`: whoever keeps it drops what has come."""
    while (piece := await pieces.get()) is not None:
        if isinstance(piece, BrokenOff):
            raise piece
        yield piece


def _refusal(name: str) -> str:
    if _NAME.fullmatch(name) and name.strip(". ") == name:
        return ""
    return f"{name!r} cannot be the name of an artifact: write 1 to 200 letters, digits and any of . _ - + @ = , ( )"
