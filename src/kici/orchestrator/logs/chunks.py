"""A chunk's bytes: one zstd frame of UTF-8 lines, as an agent sent it. It is read with suspicion."""

from __future__ import annotations

import zstandard

from kici.wire.agent import LogChunk

MAX_TEXT_BYTES = 4 * 1024 * 1024
"""Of one chunk, uncompressed."""
MAX_LINES = 65_536
_INT4 = 2**31 - MAX_LINES


def problem(chunk: LogChunk) -> str | None:
    """Why a chunk is not to be stored, or None. Looks at the frame's header only: reading comes later."""
    if not 1 <= chunk.lines <= MAX_LINES:
        return f"a chunk holds 1 to {MAX_LINES} lines, this one says {chunk.lines}"
    if not (0 <= chunk.sequence < _INT4 and 0 <= chunk.first_line < _INT4 and 0 <= chunk.attempt < _INT4):
        return "a number of the chunk is out of range"
    if not -1 <= chunk.step_index < _INT4:
        return f"there is no step {chunk.step_index}"
    try:
        size = zstandard.get_frame_parameters(chunk.data).content_size
    except zstandard.ZstdError:
        return "the chunk's data is not a zstd frame"
    if size != zstandard.CONTENTSIZE_UNKNOWN and size > MAX_TEXT_BYTES:
        return f"a chunk may hold {MAX_TEXT_BYTES} bytes of text, this one says {size}"
    return None


def lines(data: bytes, count: int) -> list[bytes]:
    """Exactly `count` lines without their newlines, whatever the data holds: line numbers must stay true."""
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_TEXT_BYTES)
    except zstandard.ZstdError:
        return [b"[kici] this line could not be read: the agent sent a damaged chunk"] * count
    found = text.split(b"\n")
    if found[-1] == b"":
        found.pop()
    return found[:count] + [b""] * (count - len(found))
