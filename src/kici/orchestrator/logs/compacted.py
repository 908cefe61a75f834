"""The format of a compacted log: readable by `zstd -d`, and from any line on without reading what is before it.

The object is a row of zstd frames of whole lines (about `FRAME_BYTES` of text each), then one skippable frame with the
index: msgpack of `Index`, its length (4 bytes, little endian) and `kici`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec
import zstandard
from msgspec import Struct

from kici.errors import KiciError
from kici.orchestrator.objects.contract import ObjectNotFound, Objects

FRAME_BYTES = 256 * 1024
_SKIPPABLE = 0x184D2A5E
_MAGIC = b"kici"
_TAIL = 64 * 1024
_MAX_FRAME = 64 * 1024 * 1024


class DamagedLog(KiciError):
    code = "damaged_log"


class Index(Struct, frozen=True, array_like=True):
    lines: int
    size: int
    """Bytes of text."""
    firsts: list[int]
    """First line of each frame."""
    offsets: list[int]
    """Where each frame begins, and where the last one ends."""


class Packer:
    """Makes the object piece by piece; holds one frame's text in memory."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._firsts: list[int] = []
        self._offsets = [0]
        self.lines = 0
        self.size = 0

    def add(self, lines: Iterable[bytes]) -> bytes:
        """Take lines without newlines; returns what of the object is ready, often nothing."""
        ready = []
        for line in lines:
            self._waiting.append(line)
            self._waiting_bytes += len(line) + 1
            if self._waiting_bytes >= FRAME_BYTES:
                ready.append(self._frame())
        return b"".join(ready)

    def finish(self) -> bytes:
        """The rest of the object."""
        rest = self._frame() if self._waiting else b""
        index = msgspec.msgpack.encode(Index(self.lines, self.size, self._firsts, self._offsets))
        payload = index + struct.pack("<I", len(index)) + _MAGIC
        return rest + struct.pack("<II", _SKIPPABLE, len(payload)) + payload

    def _frame(self) -> bytes:
        frame = self._compressor.compress(b"\n".join(self._waiting) + b"\n")
        self._firsts.append(self.lines)
        self._offsets.append(self._offsets[-1] + len(frame))
        self.lines += len(self._waiting)
        self.size += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        return frame


async def read_index(objects: Objects, key: str) -> Index:
    size = await objects.size(key)
    if size is None:
        raise ObjectNotFound(f"the compacted log {key!r} is gone from the object store")
    tail = await _bytes(objects, key, max(0, size - _TAIL), size)
    if tail[-4:] != _MAGIC or len(tail) < 16:
        raise DamagedLog(f"the compacted log {key!r} has no index: it is not one of ours, or damaged")
    (length,) = struct.unpack("<I", tail[-8:-4])
    if length + 8 > len(tail):
        tail = await _bytes(objects, key, max(0, size - length - 8), size)
    try:
        return msgspec.msgpack.decode(tail[-8 - length : -8], type=Index)
    except msgspec.DecodeError as error:
        raise DamagedLog(f"the index of the compacted log {key!r} is damaged") from error


async def read_lines(objects: Objects, key: str, index: Index, first: int, end: int, *, max_bytes: int) -> list[bytes]:
    """Lines `first` (inclusive) to `end` (exclusive), fewer if they have more than `max_bytes`, but at least one."""
    found: list[bytes] = []
    size = 0
    at = first
    while at < min(end, index.lines):
        number = bisect_right(index.firsts, at) - 1
        for line in await _frame_lines(objects, key, index, number, at - index.firsts[number], end - at):
            size += len(line) + 1
            if found and size > max_bytes:
                return found
            found.append(line)
            at += 1
    return found


async def _frame_lines(objects: Objects, key: str, index: Index, number: int, skip: int, count: int) -> Sequence[bytes]:
    frame = await _bytes(objects, key, index.offsets[number], index.offsets[number + 1])
    try:
        text = zstandard.ZstdDecompressor().decompress(frame, max_output_size=_MAX_FRAME)
    except zstandard.ZstdError as error:
        raise DamagedLog(f"frame {number} of the compacted log {key!r} is damaged") from error
    lines = text.split(b"\n")[:-1]
    following = index.firsts[number + 1] if number + 1 < len(index.firsts) else index.lines
    if len(lines) != following - index.firsts[number]:
        raise DamagedLog(f"frame {number} of the compacted log {key!r} does not hold the lines that its index says")
    return lines[skip : skip + count]


async def _bytes(objects: Objects, key: str, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in objects.read(key, start=start, end=end)])
