"""Following a run: who is told when something of it has changed, and the new lines of a step's log.

Notifications only wake; what has changed is read from the database. A follower that was not woken looks again after its
own time-out, so a lost notification costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.logs import chunks, compacted
from kici.orchestrator.logs.reader import is_complete, text
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import logs, notify

BATCH_CHUNKS = 32
BATCH_BYTES = 1024 * 1024


class Listens(Protocol):
    def subscribe(self, channel: str, callback: Callable[[set[str]], None]) -> None: ...


class Changes(Struct, frozen=True):
    """What a watch was told since it was last asked."""

    run: bool = False
    logs_of: frozenset[str] = frozenset()
    """Job ids."""
    unknown: bool = False
    """Nobody knows: time ran out, or notifications were lost. Look at everything."""
    closing: bool = False
    """This coordinator stops: take leave, the client will ask another one."""


class Watch:
    """One follower of one run. Made by `RunFeed.watch`."""

    def __init__(self, feed: RunFeed, run_id: str) -> None:
        self._feed = feed
        self._run_id = run_id
        self._woken = asyncio.Event()
        self._run = False
        self._jobs: set[str] = set()
        self._unknown = False

    def follow_jobs(self, job_ids: Iterable[str]) -> None:
        """Be told of new lines of these jobs, too."""
        for job_id in job_ids:
            self._feed.add(job_id, self)

    async def changed(self, timeout: float) -> Changes:
        """Wait for something to happen, at most `timeout` seconds."""
        unknown = False
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            unknown = True
        changes = Changes(self._run, frozenset(self._jobs), self._unknown or unknown, self._feed.closed)
        if not self._feed.closed:
            self._woken.clear()
        self._run, self._jobs, self._unknown = False, set(), False
        return changes

    def wake(self, key: str | None) -> None:
        if key is None:
            self._unknown = True
        elif key == self._run_id:
            self._run = True
        else:
            self._jobs.add(key)
        self._woken.set()


class RunFeed:
    """All followers of this process, behind one listener.

    A service for its end only: run it in the stage of the HTTP server, so that open streams end before the server.
    """

    def __init__(self, listener: Listens) -> None:
        self._watches: dict[str, set[Watch]] = {}
        self.closed = False
        listener.subscribe(notify.RUNS, self._told)
        listener.subscribe(notify.LOGS, self._told)

    async def run(self) -> None:
        """Nothing until it is cancelled; then all followers are asked to leave."""
        try:
            await asyncio.Event().wait()
        finally:
            self.close()

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Watch]:
        """Follow a run. Read its state after this, not before: then nothing is missed."""
        watch = Watch(self, run_id)
        self.add(run_id, watch)
        try:
            yield watch
        finally:
            for key in [key for key, watches in self._watches.items() if watch in watches]:
                self._watches[key].discard(watch)
                if not self._watches[key]:
                    del self._watches[key]

    def watched(self, run_id: str) -> bool:
        return run_id in self._watches

    def add(self, key: str, watch: Watch) -> None:
        self._watches.setdefault(key, set()).add(watch)

    def close(self) -> None:
        """Ask all followers to leave, and take no new ones."""
        self.closed = True
        self._told(set())

    def _told(self, keys: set[str]) -> None:
        if not keys:
            for watch in {watch for watches in self._watches.values() for watch in watches}:
                watch.wake(None)
        for key in keys:
            for watch in self._watches.get(key, ()):
                watch.wake(key)


class Lines(Struct, frozen=True):
    first_line: int
    lines: list[str]


class StepTail:
    """Where a follower stands in one step's log. `read` again and again gives every line once, in order."""

    def __init__(self, pool: Pool[Record], objects: Objects) -> None:
        self._pool = pool
        self._objects = objects
        self._line = 0
        self._sequence = 0
        self._index: compacted.Index | None = None
        self.complete = False
        """All lines there will ever be have been read."""

    async def read(self, step: logs.Step) -> Lines | None:
        """The next lines, a batch at most; None: there is nothing new now. `step` is its row as of now."""
        if self.complete:
            return None
        if step.log_lines is not None:
            return await self._from_object(step)
        if is_complete(step, self._sequence):
            self.complete = True
            return None
        async with self._pool.acquire() as db:
            found = await logs.chunks_from(db, step, self._sequence, BATCH_CHUNKS)
        first, lines = self._line, list[bytes]()
        size = 0
        for chunk in found:
            if chunk.sequence != self._sequence or size > BATCH_BYTES:
                break
            lines += chunks.lines(chunk.data, chunk.lines)
            size += len(chunk.data)
            self._sequence += 1
            self._line += chunk.lines
        self.complete = is_complete(step, self._sequence)
        return Lines(first, text(lines)) if lines else None

    async def _from_object(self, step: logs.Step) -> Lines | None:
        if step.log_path is None:
            self.complete = True
            return None
        if self._index is None:
            self._index = await compacted.read_index(self._objects, step.log_path)
        first = self._line
        lines = await compacted.read_lines(
            self._objects, step.log_path, self._index, first, self._index.lines, max_bytes=BATCH_BYTES
        )
        self._line += len(lines)
        self.complete = self._line >= self._index.lines
        return Lines(first, text(lines)) if lines else None
