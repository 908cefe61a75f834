"""Requests to the host that are answered, and their answers: artifacts, caches, secret outputs, events."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kici.errors import KiciError
from kici.runner.link import NONE, Link
from kici.runner.program import ArtifactFailed
from kici.wire.runner import (
    ArtifactBegin,
    ArtifactEnd,
    ArtifactFetch,
    CacheBegin,
    CacheFetch,
    Emit,
    FromRunner,
    Pipe,
    Reply,
    SecretOutput,
)


class Refused(KiciError):
    """The host would not do it. The message says why."""

    code = "refused_by_host"
    status = 422


class Transfers:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[int | Reply]] = {}

    def answered(self, message: Reply | Pipe) -> None:
        """By the host. A pipe's descriptor is closed when nobody waits for it any more."""
        descriptor = self._link.descriptor() if isinstance(message, Pipe) else NONE
        answers = self._answers.get(message.request)
        if answers is not None:
            answers.put_nowait(message if isinstance(message, Reply) else descriptor)
        elif descriptor != NONE:
            os.close(descriptor)

    # ── artifacts and caches ─────────────────────────────────────────────────────────────────────────────────────────

    async def store(self, name: str, pack: Callable[[int], Awaitable[None]]) -> None:
        """`pack` writes the artifact into a pipe, if the host wants it.

        Raises `ArtifactFailed`, and what `pack` does.
        """
        error = await self._upload(lambda request: ArtifactBegin(request, name), pack)
        if error:
            raise ArtifactFailed(f"artifact {name!r} was not stored: {error}")

    async def fetch(self, name: str, unpack: Callable[[int], Awaitable[object]]) -> None:
        """`unpack` reads the artifact from a pipe, and what it has read counts only when this returns.

        Raises `ArtifactFailed`, and what `unpack` does.
        """
        reply = await self._download(lambda request: ArtifactFetch(request, name), unpack)
        if reply.error:
            raise ArtifactFailed(f"artifact {name!r} was not fetched: {reply.error}")

    async def save_cache(self, key: str, pack: Callable[[int], Awaitable[None]]) -> None:
        """As `store`."""
        error = await self._upload(lambda request: CacheBegin(request, key), pack)
        if error:
            raise ArtifactFailed(f"cache {key!r} was not saved: {error}")

    async def fetch_cache(self, key: str, restore: Sequence[str], unpack: Callable[[int], Awaitable[object]]) -> str:
        """As `fetch`. The key of the entry that was found, or nothing."""
        reply = await self._download(lambda request: CacheFetch(request, key, tuple(restore)), unpack)
        if reply.error:
            raise ArtifactFailed(f"cache {key!r} was not fetched: {reply.error}")
        return reply.value

    # ── questions with one answer ────────────────────────────────────────────────────────────────────────────────────

    async def secret_output(self, name: str, value: str) -> None:
        """Raises `Refused`."""
        await self._asked(lambda request: SecretOutput(request, name, value))

    async def emit(self, name: str, payload: Any, key: str) -> str:
        """The event's id. Raises `Refused`."""
        return await self._asked(lambda request: Emit(request, name, payload, key))

    async def _asked(self, message: Callable[[int], FromRunner]) -> str:
        with self._open() as (request, answers):
            await self._link.post(message(request))
            reply = await _reply(answers)
            if reply.error:
                raise Refused(reply.error)
            return reply.value

    async def _upload(self, begin: Callable[[int], FromRunner], pack: Callable[[int], Awaitable[None]]) -> str:
        """Why it was not kept; empty if it was."""
        with self._open() as (request, answers):
            await self._link.post(begin(request))
            answer = await answers.get()
            if isinstance(answer, Reply):
                return answer.error
            whole = False
            try:
                with suppress(BrokenPipeError):  # the host wants no more, and tells why
                    await pack(answer)
                    whole = True
            finally:
                os.close(answer)
                await self._link.post(ArtifactEnd(request, broken=not whole))
            return (await _reply(answers)).error or ("" if whole else "the host took only a part of it")

    async def _download(self, fetch: Callable[[int], FromRunner], unpack: Callable[[int], Awaitable[object]]) -> Reply:
        with self._open() as (request, answers):
            await self._link.post(fetch(request))
            answer = await answers.get()
            if isinstance(answer, Reply):
                return answer
            try:
                await unpack(answer)
            except ArtifactFailed:
                os.close(answer)
                answer = NONE
                reply = await _reply(answers)
                if reply.error:  # it came only in part, or damaged: no wonder
                    return reply
                raise
            finally:
                if answer != NONE:
                    os.close(answer)
            return await _reply(answers)

    @contextmanager
    def _open(self) -> Iterator[tuple[int, asyncio.Queue[int | Reply]]]:
        request = next(self._numbers)
        answers: asyncio.Queue[int | Reply] = asyncio.Queue()
        self._answers[request] = answers
        try:
            yield request, answers
        finally:
            del self._answers[request]
            while not answers.empty():
                answer = answers.get_nowait()
                if not isinstance(answer, Reply):
                    os.close(answer)


async def _reply(answers: asyncio.Queue[int | Reply]) -> Reply:
    answer = await answers.get()
    if isinstance(answer, Reply):
        return answer
    os.close(answer)
    return Reply(0, "the host sent a pipe instead of an answer")
