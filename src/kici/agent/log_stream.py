"""The log of one step: bytes in, masked lines with their time out, in compressed chunks.

A chunk leaves when nearly 192 KiB of lines are together, or 100 ms after its first line. An unfinished line waits for
its end, or until it is 64 KiB long: then it is cut. Bytes that are no UTF-8 become replacement characters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import zstandard

from kici.agent.masking import Masker, Secrets
from kici.agent.outbox import Outbox
from kici.wire.agent import AttemptRef, LogChunk

CHUNK_BYTES = 196_608
"""At most. Of what a runner hands over at once (64 KiB) two fit in with their times, in most logs."""
LINE_BYTES = 65_536
FLUSH_S = 0.1
ZSTD_LEVEL = 1
"""Chunks are compressed anew when a step has ended: what counts here is the agent's time."""


class StepLog:
    """`write` awaits room in the outbox: whoever feeds the step's output is slowed down by a slow orchestrator."""

    def __init__(
        self,
        outbox: Outbox,
        attempt: AttemptRef,
        step_index: int,
        secrets: Secrets,
        *,
        limit_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._attempt = attempt
        self._step_index = step_index
        self._masker = Masker(secrets)
        self._limit = limit_bytes
        self._now = now
        self._unfinished = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._lines = 0
        """In the pieces."""
        self._taken = 0
        self._dropped = 0
        self._first_line = 0
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def write(self, data: bytes) -> None:
        if self._closed:
            return
        self._take(self._masker.feed(data))
        await self._outbox.room(self._attempt)

    def say(self, text: str) -> None:
        """Lines of our own, on lines of their own. They count as output like any other."""
        if not self._closed:
            self._end_line()
            self._take(self._masker.feed(text.encode(errors="replace") + b"\n"))

    def close(self) -> int:
        """Send the rest. Returns how many chunks there are in all. What comes later is dropped."""
        if not self._closed:
            self._end_line()
            if self._dropped:
                self._stamp(f"[TRUNCATED: {self._dropped:,} more bytes were dropped]\n".encode())
            self._flush()
            self._closed = True
        return self._sequence

    def _end_line(self) -> None:
        rest = self._masker.flush()
        if rest or self._unfinished:
            self._take(rest + b"\n")

    def _take(self, masked: bytes) -> None:
        if not masked:
            return
        text = self._unfinished + masked
        end = text.rfind(b"\n") + 1
        complete, self._unfinished = text[:end], text[end:]
        if _has_long_line(complete):
            complete = b"\n".join(_cut(line) for line in complete.split(b"\n"))
        if len(self._unfinished) > LINE_BYTES:
            *pieces, self._unfinished = _pieces(self._unfinished)
            complete += b"".join(piece + b"\n" for piece in pieces)
        if complete:
            self._count(complete)

    def _count(self, complete: bytes) -> None:
        """Let through what fits below the limit, cut at a line, and say once that the rest is missing."""
        if self._dropped:
            self._dropped += len(complete)
        elif self._taken + len(complete) <= self._limit:
            self._taken += len(complete)
            self._stamp(complete)
        else:
            end = complete.rfind(b"\n", 0, max(self._limit - self._taken, 0)) + 1
            self._dropped = len(complete) - end
            if end:
                self._stamp(complete[:end])
            self._stamp(b"[TRUNCATED: log output exceeded %d bytes]\n" % self._limit)

    def _stamp(self, complete: bytes) -> None:
        if not complete.isascii():
            complete = complete.decode(errors="replace").encode()
        stamp = _stamp(self._now())
        stamped = b"%b%b\n" % (stamp, complete[:-1].replace(b"\n", b"\n" + stamp))
        if len(stamped) <= CHUNK_BYTES:
            self._add(stamped, (len(stamped) - len(complete)) // len(stamp))
            return
        start = 0
        while len(stamped) - start > CHUNK_BYTES:
            end = stamped.rindex(b"\n", start, start + CHUNK_BYTES) + 1
            self._add(stamped[start:end], stamped.count(b"\n", start, end))
            start = end
        self._add(stamped[start:], stamped.count(b"\n", start))

    def _add(self, stamped: bytes, lines: int) -> None:
        if self._size + len(stamped) > CHUNK_BYTES:
            self._flush()
        self._pieces.append(stamped)
        self._size += len(stamped)
        self._lines += lines
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pieces:
            return
        chunk = LogChunk(
            job_id=self._attempt.job_id,
            attempt=self._attempt.attempt,
            step_index=self._step_index,
            sequence=self._sequence,
            first_line=self._first_line,
            lines=self._lines,
            data=_compressor.compress(b"".join(self._pieces)),
        )
        self._sequence += 1
        self._first_line += self._lines
        self._pieces.clear()
        self._size = self._lines = 0
        self._outbox.put_log(chunk)


_compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)


def _stamp(seconds: float) -> bytes:
    """`2026-01-02T03:04:05.678Z `"""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S").encode() + b".%03dZ " % (moment.microsecond // 1000)


def _has_long_line(lines: bytes) -> bool:
    """Whether one is longer than `LINE_BYTES`, without looking at each."""
    start = 0
    while len(lines) - start > LINE_BYTES:
        end = lines.rfind(b"\n", start, start + LINE_BYTES + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _cut(line: bytes) -> bytes:
    return line if len(line) <= LINE_BYTES else b"\n".join(_pieces(line))


def _pieces(line: bytes) -> list[bytes]:
    """At most `LINE_BYTES` each, never inside a UTF-8 character."""
    pieces, start = [], 0
    while len(line) - start > LINE_BYTES:
        end = start + LINE_BYTES
        for back in range(4):
            if line[end - back] & 0xC0 != 0x80:
                end -= back
                break
        pieces.append(line[start:end])
        start = end
    return [*pieces, line[start:]]
