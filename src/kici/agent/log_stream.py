"""The log of one step: bytes in, masked lines with their time out, in compressed chunks.

A chunk leaves when nearly 192 KiB of lines are together, or 100 ms after its first line. An unfinished line waits for
its end, or until it is 64 KiB long: then it is cut. Bytes that are no UTF-8 become replacement characters.

Of a step that writes more than its limit the head and the tail are kept, and between them stands how much is missing:
the reason of a failure is mostly at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import zstandard

from kici.agent.masking import Masker, Secrets
from kici.agent.outbox import Outbox
from kici.wire.agent import AttemptRef, LogChunk

CHUNK_BYTES = 196_608
"""At most. Of what a runner hands over at once (64 KiB) two fit in with their times, in most logs."""
LINE_BYTES = 65_536
TAIL_BYTES = 262_144
"""Of a step that writes too much: its last lines, beside the limit."""
FLUSH_S = 0.1
ZSTD_LEVEL = 1
"""Chunks are compressed anew when a step has ended: what counts here is the agent's time."""


_SMALL = 8_192


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
        self._tail: Tail | None = None
        """Once the limit is reached."""
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
            if self._tail is not None:
                self._add_tail(self._tail)
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
        """Let through what fits below the limit, cut at a line, and say once that only the last lines will follow."""
        if self._tail is not None:
            self._tail.put(complete, self._now())
        elif self._taken + len(complete) <= self._limit:
            self._taken += len(complete)
            self._stamp(complete, self._now())
        else:
            end = complete.rfind(b"\n", 0, max(self._limit - self._taken, 0)) + 1
            if end:
                self._stamp(complete[:end], self._now())
            self._stamp(
                b"[TRUNCATED: log output exceeded %d bytes; its last lines follow when the step has ended]\n"
                % self._limit,
                self._now(),
            )
            self._tail = Tail(min(TAIL_BYTES, self._limit))
            self._tail.put(complete[end:], self._now())

    def _add_tail(self, tail: Tail) -> None:
        pieces = tail.pieces()
        if tail.dropped_bytes:
            text = f"[TRUNCATED: {tail.dropped_bytes:,} bytes in {tail.dropped_lines:,} lines were dropped here]\n"
            self._stamp(text.encode(), self._now())
        for complete, at_s in pieces:
            self._stamp(complete, at_s)

    def _stamp(self, complete: bytes, at_s: float) -> None:
        if not complete.isascii():
            complete = complete.decode(errors="replace").encode()
        stamp = _stamp(at_s)
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


class Tail:
    """The last lines of what is put in, with the time at which each came, to 100 ms."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._pieces: deque[tuple[bytes, float]] = deque()
        self._size = 0
        self.dropped_bytes = 0
        self.dropped_lines = 0

    def put(self, complete: bytes, at_s: float) -> None:
        last, began_s = self._pieces[-1] if self._pieces else (b"", -1.0)
        if at_s - began_s < FLUSH_S and len(last) < _SMALL:  # many small ones would take many times their bytes
            self._pieces[-1] = (last + complete, began_s)
        else:
            self._pieces.append((complete, at_s))
        self._size += len(complete)
        while self._size - len(self._pieces[0][0]) >= self._limit:
            self._drop(self._pieces.popleft()[0])

    def pieces(self) -> list[tuple[bytes, float]]:
        """At most as many bytes as the limit, in whole lines. Afterwards `dropped_…` say what is missing before."""
        if self._size > self._limit:
            first, at_s = self._pieces.popleft()
            start = first.find(b"\n", self._size - self._limit - 1) + 1
            self._drop(first[:start])
            if start < len(first):
                self._pieces.appendleft((first[start:], at_s))
        return list(self._pieces)

    def _drop(self, complete: bytes) -> None:
        self._size -= len(complete)
        self.dropped_bytes += len(complete)
        self.dropped_lines += complete.count(b"\n")


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
