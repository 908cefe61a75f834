"""Reading a request's body: bounded, and on disk when it is large."""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

from litestar.types import HTTPReceiveMessage
from msgspec import Struct

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.intake.errors import BodyTooLarge, BodyTooSlow
from kici.orchestrator.intake.inflight import Reservation

Receive: TypeAlias = Callable[[], Awaitable[HTTPReceiveMessage]]

_PIECE = 256 * 1024
_DEADLINE_S = 60.0


class Limits(Struct, frozen=True):
    max_bytes: int
    spool_above: int
    spool_directory: Path | None
    """None = the system's directory for temporary files."""


class SenderLeft(Exception):
    """The sender hung up before the end of its body: nobody waits for an answer."""


class Body:
    """A whole body: `data` is bytes, or the map of a file that has no name any more. Close it."""

    __slots__ = ("_file", "data")

    def __init__(self, data: bytes | mmap.mmap, file: IO[bytes] | None = None) -> None:
        self.data = data
        self._file = file

    @property
    def spooled(self) -> bool:
        return self._file is not None

    def pieces(self) -> Iterator[memoryview]:
        with memoryview(self.data) as view:
            for start in range(0, len(view), _PIECE):
                with view[start : start + _PIECE] as piece:
                    yield piece

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def read(receive: Receive, limits: Limits, reserved: Reservation) -> Body:
    """Raises `BodyTooLarge` at the first byte over the limit, `BodyTooSlow`, `Busy`, `Unavailable` for a full disk, or
    `SenderLeft`.
    """
    message: Mapping[str, Any] = await receive()
    data: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body") and len(data) <= limits.spool_above:
        _check(len(data), limits)
        reserved.grow(len(data))
        return Body(data)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await _read_pieces(message, receive, limits, reserved)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {_DEADLINE_S:.0f} s") from None


async def _read_pieces(message: Mapping[str, Any], receive: Receive, limits: Limits, reserved: Reservation) -> Body:
    spool: _Spool | None = None
    held: list[bytes] = []
    size = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise SenderLeft
            piece: bytes = message.get("body", b"")
            size += len(piece)
            _check(size, limits)
            reserved.grow(len(piece))
            held.append(piece)
            if spool is None and size > limits.spool_above:
                spool = _Spool(limits.spool_directory)
            if spool is not None and sum(map(len, held)) >= _PIECE:
                await spool.write(held)
            if not message.get("more_body"):
                break
            message = await receive()
        if spool is None:
            return Body(b"".join(held))
        await spool.write(held)
        body, spool = spool.finish(), None
        return body
    finally:
        if spool is not None:
            spool.discard()


def _check(size: int, limits: Limits) -> None:
    if size > limits.max_bytes:
        raise too_large(limits.max_bytes)


def too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than the {limit} bytes that this source may send")


class _Spool:
    def __init__(self, directory: Path | None) -> None:
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _no_room(error) from error

    async def write(self, held: list[bytes]) -> None:
        data = b"".join(held)
        held.clear()
        try:
            await asyncio.to_thread(self._write_all, data)
        except OSError as error:
            raise _no_room(error) from error

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def finish(self) -> Body:
        return Body(mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ), self._file)

    def discard(self) -> None:
        self._file.close()


def _no_room(error: OSError) -> Unavailable:
    return Unavailable(f"there is no room to take in a large body ({error.strerror}): send it again later")
