"""What the orchestrator has not yet acknowledged.

Statuses overtake logs. Logs of one job keep their order and flow within a window of unacknowledged bytes; what waits
behind the window is bounded too, by writers that await `room`. A frame gets its number when it is sent for the first
time, so numbers grow on the wire, and keeps it when it is sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from kici.wire.agent import (
    LOG_WINDOW_BYTES,
    MAX_LOG_WINDOW_BYTES,
    Ack,
    AttemptRef,
    JobAccepted,
    JobRejected,
    JobStatusChanged,
    LogChunk,
    StepStatusChanged,
)

log = structlog.get_logger(__name__)

Status = JobAccepted | JobRejected | StepStatusChanged | JobStatusChanged

BUFFER_BYTES = 4 * MAX_LOG_WINDOW_BYTES
"""Of one job, compressed, sent or not: what is written while the orchestrator is away, before a step has to wait."""


class Frame:
    """One message on its way."""

    __slots__ = ("body", "outcome", "sent_at", "seq")

    def __init__(self, body: Status | LogChunk) -> None:
        self.body = body
        self.seq = 0
        """0 = never sent."""
        self.sent_at = 0.0
        """Monotonic time of the first sending."""
        self.outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None once acknowledged; else why the orchestrator refused it, or that it was withdrawn."""

    def settle(self, refusal: str | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(refusal)


class _Stream:
    """The logs of one job: all its steps, which follow one another."""

    def __init__(self) -> None:
        self.waiting: deque[Frame] = deque()
        self.in_flight = 0
        self.buffered = 0
        """Bytes that wait or are in flight."""
        self.changed = asyncio.Event()

    def may_send(self, window: int) -> bool:
        return bool(self.waiting) and (not self.in_flight or self.in_flight + _size(self.waiting[0]) <= window)


class Outbox:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._statuses: deque[Frame] = deque()
        self._streams: dict[AttemptRef, _Stream] = {}
        self._window = LOG_WINDOW_BYTES
        self._sent: dict[int, Frame] = {}
        self._last_seq = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def put(self, body: Status) -> Frame:
        frame = Frame(body)
        self._statuses.append(frame)
        self._filled.set()
        self._emptied.clear()
        return frame

    def put_log(self, chunk: LogChunk) -> None:
        frame = Frame(chunk)
        stream = self._streams.setdefault(_ref(chunk), _Stream())
        stream.waiting.append(frame)
        stream.buffered += chunk.cost
        self._filled.set()
        self._emptied.clear()

    async def room(self, ref: AttemptRef) -> None:
        """Wait until this job's steps may write more. Returns at once when the attempt is withdrawn."""
        while stream := self._streams.get(ref):
            if stream.buffered < BUFFER_BYTES:
                return
            stream.changed.clear()
            await stream.changed.wait()

    def set_window(self, window: int) -> None:
        """How many bytes of one job's logs may be unacknowledged."""
        self._window = window
        self._filled.set()

    async def next(self) -> Frame:
        """The frame to send now. From here on it counts as sent, whether or not the sending succeeds."""
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            self._filled.clear()
            await self._filled.wait()

    def take_status(self) -> Frame | None:
        """A status that is to be sent now as well, if there is one; it counts as sent from here on."""
        return self._take() if self._statuses else None

    def settle(self, ack: Ack) -> None:
        for seq in ack.seqs:
            self._settle(seq, None)
        for seq, reason in ack.refused:
            self._settle(seq, reason)

    def rewind(self) -> None:
        """The connection was lost: everything unacknowledged will be sent again, by its number, before what is new."""
        self._window = LOG_WINDOW_BYTES
        for _, frame in sorted(self._sent.items(), reverse=True):
            if isinstance(frame.body, LogChunk):
                stream = self._streams[_ref(frame.body)]
                stream.waiting.appendleft(frame)
                stream.in_flight = 0
            else:
                self._statuses.appendleft(frame)
        self._sent.clear()
        self._filled.set()

    def withdraw(self, ref: AttemptRef) -> None:
        """Nothing more is said about this attempt."""
        everything = [*self._sent.values(), *self._statuses]
        if stream := self._streams.pop(ref, None):
            everything += stream.waiting
            stream.changed.set()
        gone = [frame for frame in everything if _ref(frame.body) == ref]
        self._sent = {seq: frame for seq, frame in self._sent.items() if _ref(frame.body) != ref}
        self._statuses = deque(frame for frame in self._statuses if _ref(frame.body) != ref)
        for frame in gone:
            frame.settle("withdrawn")
        self._note_if_empty()

    async def empty(self) -> None:
        """Wait until everything is acknowledged."""
        await self._emptied.wait()

    def _take(self) -> Frame | None:
        frame = self._statuses.popleft() if self._statuses else self._take_log()
        if frame is not None:
            if not frame.seq:
                self._last_seq += 1
                frame.seq = self._last_seq
                frame.sent_at = self._clock()
            self._sent[frame.seq] = frame
        return frame

    def _take_log(self) -> Frame | None:
        for key, stream in self._streams.items():
            if stream.may_send(self._window):
                frame = stream.waiting.popleft()
                stream.in_flight += _size(frame)
                # To the end of the row: jobs take turns.
                self._streams[key] = self._streams.pop(key)
                return frame
        return None

    def _settle(self, seq: int, refusal: str | None) -> None:
        frame = self._sent.pop(seq, None)
        if frame is None:
            return
        if refusal is not None:
            log.warning("the orchestrator refused a message", kind=type(frame.body).__name__, reason=refusal)
        if isinstance(frame.body, LogChunk):
            stream = self._streams[_ref(frame.body)]
            stream.in_flight -= _size(frame)
            stream.buffered -= _size(frame)
            stream.changed.set()
            if not stream.buffered:
                del self._streams[_ref(frame.body)]
            self._filled.set()
        frame.settle(refusal)
        self._note_if_empty()

    def _note_if_empty(self) -> None:
        if not self._sent and not self._statuses and not self._streams:
            self._emptied.set()


def _size(frame: Frame) -> int:
    return frame.body.cost if isinstance(frame.body, LogChunk) else 0


def _ref(body: Status | LogChunk) -> AttemptRef:
    return AttemptRef(body.job_id, body.attempt)
