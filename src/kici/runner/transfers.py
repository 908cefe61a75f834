"""Requests to the host that are answered, and their answers: artifacts, caches, secret outputs, events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kici.errors import KiciError
from kici.runner.link import Link
from kici.runner.program import ArtifactFailed
from kici.wire.runner import (
    ArtifactBegin,
    ArtifactData,
    ArtifactEnd,
    ArtifactFetch,
    CacheBegin,
    CacheFetch,
    Emit,
    FromRunner,
    Reply,
    SecretOutput,
)

_AHEAD = 16
"""Pieces of a download that wait to be unpacked."""


class Refused(KiciError):
    """The host would not do it. The message says why."""

    code = "refused_by_host"
    status = 422


class Transfers:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[bytes | Reply]] = {}

    async def answered(self, message: Reply | ArtifactData) -> None:
        """From the host. Waits while what came before is not yet unpacked."""
        answers = self._answers.get(message.request)
        if answers is not None:
            await answers.put(message if isinstance(message, Reply) else message.data)

    # ── artifacts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def store(self, name: str, data: AsyncIterator[bytes]) -> None:
        """Raises `ArtifactFailed`."""
        request, answers = self._open()
        try:
            error = await self._upload(request, answers, ArtifactBegin(request, name), data)
            if error:
                raise ArtifactFailed(f"artifact {name!r} was not stored: {error}")
        finally:
            self._close(request)

    async def fetch(self, name: str) -> AsyncIterator[bytes]:
        """Raises `ArtifactFailed`."""
        request, answers = self._open()
        try:
            await self._link.post(ArtifactFetch(request, name))
            while isinstance(answer := await answers.get(), bytes):
                yield answer
            if answer.error:
                raise ArtifactFailed(f"artifact {name!r} was not fetched: {answer.error}")
        finally:
            self._close(request)

    # ── caches ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def save_cache(self, key: str, data: AsyncIterator[bytes]) -> None:
        """Raises `ArtifactFailed`."""
        request, answers = self._open()
        try:
            error = await self._upload(request, answers, CacheBegin(request, key), data)
            if error:
                raise ArtifactFailed(f"cache {key!r} was not saved: {error}")
        finally:
            self._close(request)

    async def fetch_cache(self, key: str, restore: Sequence[str], found: list[str]) -> AsyncIterator[bytes]:
        """The entry's bytes, none if there is no entry; then the key that was found is put into `found`.

        Raises `ArtifactFailed`.
        """
        request, answers = self._open()
        try:
            await self._link.post(CacheFetch(request, key, tuple(restore)))
            while isinstance(answer := await answers.get(), bytes):
                yield answer
            if answer.error:
                raise ArtifactFailed(f"cache {key!r} was not fetched: {answer.error}")
            if answer.value:
                found.append(answer.value)
        finally:
            self._close(request)

    # ── questions with one answer ────────────────────────────────────────────────────────────────────────────────────

    async def secret_output(self, name: str, value: str) -> None:
        """Raises `Refused`."""
        await self._asked(lambda request: SecretOutput(request, name, value))

    async def emit(self, name: str, payload: Any, key: str) -> str:
        """The event's id. Raises `Refused`."""
        return await self._asked(lambda request: Emit(request, name, payload, key))

    async def _asked(self, message: Any) -> str:
        request, answers = self._open()
        try:
            await self._link.post(message(request))
            answer = await answers.get()
            if isinstance(answer, bytes) or answer.error:
                raise Refused(_error(answer))
            return answer.value
        finally:
            self._close(request)

    async def _upload(
        self, request: int, answers: asyncio.Queue[bytes | Reply], begin: FromRunner, data: AsyncIterator[bytes]
    ) -> str:
        """Why it was not kept; empty if it was."""
        await self._link.post(begin)
        whole = False
        try:
            async for piece in data:
                await self._link.post(ArtifactData(request, piece))
            whole = True
        finally:
            await self._link.post(ArtifactEnd(request, broken=not whole))
        answer = await answers.get()
        return _error(answer) if isinstance(answer, bytes) or answer.error else ""

    def _open(self) -> tuple[int, asyncio.Queue[bytes | Reply]]:
        request = next(self._numbers)
        self._answers[request] = asyncio.Queue(_AHEAD)
        return request, self._answers[request]

    def _close(self, request: int) -> None:
        answers = self._answers.pop(request)
        while not answers.empty():  # lets go of a host's answer that waits for room
            answers.get_nowait()


def _error(answer: bytes | Reply) -> str:
    return answer.error if isinstance(answer, Reply) else "the host sent data instead of an answer"
