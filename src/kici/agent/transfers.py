"""What a runner asks of the host and is answered: artifacts and caches on their way, secret outputs, events.

Their bytes come and go through pipes, one for each, so that a slow one holds up nothing else. A pipe is made by us and
only when it is needed: what is refused, or is there already, the runner does not even pack.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol

from kici.agent.handed_over import MAX_SECRET_BYTES, HandedOver, refuse_key
from kici.agent.step_order import ProtocolBroken
from kici.engine.lockfile import Level
from kici.errors import KiciError
from kici.runner import pipes
from kici.runner.link import NONE
from kici.wire.runner import (
    ArtifactBegin,
    ArtifactEnd,
    ArtifactFetch,
    CacheBegin,
    CacheFetch,
    Emit,
    FromHost,
    Pipe,
    Reply,
    SecretOutput,
)

MAX_AT_ONCE = 40
"""Requests that are not answered yet; several steps of a parallel group may ask at the same time."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +@=,()-]{0,199}")

Request = ArtifactBegin | ArtifactEnd | ArtifactFetch | CacheFetch | CacheBegin | SecretOutput | Emit


class Send(Protocol):
    async def __call__(self, message: FromHost, descriptor: int = NONE) -> None:
        """With a descriptor, whose owner it becomes. Raises `OSError` when the runner is gone."""


class Keeper(Protocol):
    """Each raises `KiciError` or `OSError` with a message for the step."""

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None: ...
    def download(self, name: str) -> AsyncGenerator[bytes, None]: ...

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
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


class Transfers:
    def __init__(
        self,
        keeper: Keeper,
        send: Send,
        refusal: Callable[[str, Level], str] = lambda kind, level: "",
    ) -> None:
        """`refusal`: why the job may not do something, see `engine.permissions`. An orchestrator asks that itself; here
        it is asked so that the answer is the same without one, and nothing is sent in vain."""
        self._keeper = keeper
        self._send = send
        self._refusal = refusal
        self._handed_over = HandedOver()
        self._uploads: dict[int, asyncio.Future[bool]] = {}
        """Whose pipe the runner has: it will say whether it has written all of it."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last = -1
        """Requests are numbered upwards, so that an answered one is not taken for a new one."""

    async def heard(self, message: Request) -> None:
        """Raises `ProtocolBroken`."""
        request = message.request
        match message:
            case ArtifactEnd(broken=broken):
                if request not in self._uploads:
                    raise ProtocolBroken("it sent the end of an artifact that it does not upload")
                whole = self._uploads.pop(request)
                if not whole.done():
                    whole.set_result(not broken)
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

    async def _take(self, request: int, refused: str, keep: Callable[[AsyncIterator[bytes]], Awaitable[None]]) -> Reply:
        if not refused:
            async with aclosing(self._taken(request)) as data:
                await keep(data)
        return Reply(request, refused)

    async def _taken(self, request: int) -> AsyncGenerator[bytes, None]:
        """What is uploaded. Raises `BrokenOff`: whoever keeps it drops what has come."""
        source, target = pipes.make()
        try:
            whole = self._uploads[request] = asyncio.get_running_loop().create_future()
            await self._send(Pipe(request), target)
            # Its end: a runner that says so has written all before, also where somebody else keeps the pipe open.
            while piece := await pipes.read(source, unless=whole):
                yield piece
            if not await whole:
                raise BrokenOff("it was not sent to its end")
        finally:
            os.close(source)

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

    async def _send_all(self, request: int, data: AsyncGenerator[bytes, None]) -> None:
        target = NONE
        try:
            async with aclosing(data):
                async for piece in data:
                    if target == NONE:
                        source, target = pipes.make()
                        await self._send(Pipe(request), source)
                    await pipes.write(target, piece)
        except BrokenPipeError:  # the runner wants no more, and knows why
            return
        finally:
            if target != NONE:
                os.close(target)

    async def _keep_secret(self, request: int, name: str, value: str) -> Reply:
        error = self._refusal("secret_outputs", Level.WRITE) or self._handed_over.refuse_secret(name, value)
        if not error:
            await self._keeper.secret_output(name, value)
        return Reply(request, error)

    async def _emit(self, request: int, name: str, payload: Any, key: str) -> Reply:
        if error := self._refusal("events", Level.WRITE) or self._handed_over.refuse_event(name, payload):
            return Reply(request, error)
        return Reply(request, value=await self._keeper.emit(name, payload, key))


def _refusal(name: str) -> str:
    if _NAME.fullmatch(name) and name.strip(". ") == name:
        return ""
    return f"{name!r} cannot be the name of an artifact: write 1 to 200 letters, digits and any of . _ - + @ = , ( )"
