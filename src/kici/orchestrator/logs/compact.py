"""Turns the chunks of a step that has ended into one object. Works the outbox kind `compact_log`.

Order of things, and what a kill after each leaves:
1. claim the outbox row: due again when the claim runs out;
2. wait (the row goes back) until all chunks are there, at most `patience`;
3. upload under a key that no other try uses: an unused object, which step 5 of a later try removes;
4. close the log in one transaction, if nobody did it before and no chunk came in between: readers now use the object;
5. remove the objects of the other tries, 6. remove the outbox row: a later try repeats these two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog
from asyncpg import Pool, Record
from msgspec import Struct
from prometheus_client import Counter

from kici.orchestrator.logs import chunks
from kici.orchestrator.logs.compacted import Packer
from kici.orchestrator.pace import Pace
from kici.orchestrator.objects import keys
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import logs, notify, outbox
from kici.orchestrator.store.database import Db, is_away

log = structlog.get_logger(__name__)

KIND = "compact_log"
COMPACTED = Counter("kici_logs_compacted_total", "Step logs that were compacted")
INCOMPLETE = Counter("kici_logs_incomplete_total", "Step logs that were closed with lines missing")


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=5)
    """Safety net beside the notifications."""
    batch: int = 8
    """Rows worked at the same time."""
    hold: timedelta = timedelta(minutes=2)
    """How long a claim lasts."""
    patience: timedelta = timedelta(minutes=15)
    """How long announced chunks are waited for."""
    silence: timedelta = timedelta(seconds=5)
    """How long a log is waited for whose agent could not say how many chunks there are."""
    read_chunks: int = 64
    """Chunks in memory at a time."""


class Pass(Struct, frozen=True):
    claimed: int
    closed: int
    waiting: int
    failed: int


class Wakes(Protocol):
    def subscribe(self, channel: str, callback: Callable[[set[str]], None]) -> None: ...


class Tells(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


async def _nothing(moment: str) -> None:
    return None


class CompactLogs:
    """Runs on every coordinator: rows are claimed. `on_moment` is told the moments of a try, for tests of a kill."""

    def __init__(
        self,
        pool: Pool[Record],
        objects: Objects,
        listener: Wakes,
        notifier: Tells,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
        on_moment: Callable[[str], Awaitable[None]] = _nothing,
    ) -> None:
        self._pool = pool
        self._objects = objects
        self._notifier = notifier
        self._settings = settings
        self._on_pass = on_pass
        self._on_moment = on_moment
        self._pace = Pace(settings.interval)
        listener.subscribe(notify.OUTBOX, self._told)

    def _told(self, kinds: set[str]) -> None:
        if not kinds or KIND in kinds:
            self._pace.wake()

    async def run(self) -> None:
        async for pace in self._pace:
            done = await self.run_once()
            async with self._pool.acquire() as db:
                due = await outbox.next_due_s(db, KIND)
            if due is not None and due < self._settings.interval.total_seconds():
                asyncio.get_running_loop().call_later(due, pace.wake)
            self._on_pass(done)

    async def run_once(self) -> Pass:
        async with self._pool.acquire() as db:
            claims = await outbox.claim(db, KIND, self._settings.batch, hold_s=self._settings.hold.total_seconds())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._work(claim)) for claim in claims]
        results = [task.result() for task in tasks]
        return Pass(len(claims), results.count("closed"), results.count("waiting"), results.count("failed"))

    async def _work(self, claim: outbox.Claim) -> str:
        try:
            return await self._compact(claim)
        except Exception as error:  # noqa: BLE001 - whatever it is: the row keeps it, and is due again
            log.warning("a log could not be compacted, it will be tried again", step=claim.target, error=str(error))
            if not is_away(error):
                async with self._pool.acquire() as db:
                    await outbox.fail(db, claim, str(error), min(300.0, 2.0 ** min(claim.attempts, 9)))
            return "failed"

    async def _compact(self, claim: outbox.Claim) -> str:
        async with self._pool.acquire() as db:
            step = await logs.step_by_id(db, claim.target)
            if step is not None and step.log_lines is None:
                count = await logs.count(db, step)
                delay = self._too_early(claim, step, count)
                if delay is not None:
                    await outbox.give_back(db, claim, delay)
                    return "waiting"
        await self._on_moment("claimed")
        if step is not None:
            if step.log_lines is None and not await self._upload(claim, step, count):
                async with self._pool.acquire() as db:
                    await outbox.fail(db, claim, "a chunk came while the log was being compacted", 0)
                return "waiting"
            await self._remove_other_tries(claim, step)
        await self._on_moment("cleaned")
        async with self._pool.acquire() as db:
            await outbox.done(db, claim)
        return "closed"

    def _too_early(self, claim: outbox.Claim, step: logs.Step, count: int) -> float | None:
        """Seconds to wait; None: now."""
        if step.log_chunks is not None:
            if count >= step.log_chunks or claim.age_s > self._settings.patience.total_seconds():
                return None
            return min(30.0, max(0.2, claim.age_s / 4))
        left = self._settings.silence.total_seconds() - claim.age_s
        return None if left <= 0 else left

    async def _upload(self, claim: outbox.Claim, step: logs.Step, count: int) -> bool:
        """Steps 3 and 4. False: a chunk came in between."""
        packer = Packer()
        whole = _Wholeness()
        path = None
        if count or step.log_chunks:
            path = keys.step_log(step.run_id, step.job_name, step.attempt, step.step_index, claim.attempts)
            await self._objects.put(path, self._pack(step, packer, whole))
            await self._on_moment("uploaded")
        async with self._pool.acquire() as db, db.transaction():
            if await logs.hold_to_close(db, step.id):
                if await logs.count(db, step) != whole.chunks:
                    return False
                await logs.close(db, step.id, path=path, lines=packer.lines, size=packer.size)
        await self._on_moment("closed")
        COMPACTED.inc()
        if whole.gaps:
            INCOMPLETE.inc()
            log.warning("a log was closed with lines missing", step=step.id, job=step.job_id, run=step.run_id)
        self._notifier.send(notify.LOGS, step.job_id)
        return True

    async def _pack(self, step: logs.Step, packer: Packer, whole: _Wholeness) -> AsyncIterator[bytes]:
        """The object, piece by piece, whatever the size of the log. What is missing is said in the log itself."""
        sequence = 0
        while True:
            async with self._pool.acquire() as db:
                found = await logs.chunks_from(db, step, sequence, self._settings.read_chunks)
            for chunk in found:
                if chunk.sequence > sequence:
                    whole.gaps += 1
                    yield packer.add([_missing(step, chunk.sequence - sequence)])
                yield packer.add(chunks.lines(chunk.data, chunk.lines))
                sequence = chunk.sequence + 1
                whole.chunks += 1
            if len(found) < self._settings.read_chunks:
                break
        if step.log_chunks is None:
            whole.gaps += 1
            yield packer.add([_mark(step, "the log may be incomplete: its agent was lost")])
        elif sequence < step.log_chunks:
            whole.gaps += 1
            yield packer.add([_missing(step, step.log_chunks - sequence)])
        yield packer.finish()

    async def _remove_other_tries(self, claim: outbox.Claim, step: logs.Step) -> None:
        async with self._pool.acquire() as db:
            closed = await logs.step_by_id(db, step.id)
        for number in range(1, claim.attempts + 1):
            key = keys.step_log(step.run_id, step.job_name, step.attempt, step.step_index, number)
            if closed is None or key != closed.log_path:
                await self._objects.delete(key)


class _Wholeness:
    """What was put into the object."""

    def __init__(self) -> None:
        self.chunks = 0
        self.gaps = 0


def _missing(step: logs.Step, count: int) -> bytes:
    pieces = "one piece" if count == 1 else f"{count} pieces"
    return _mark(step, f"{pieces} of the log missing here: the agent did not deliver them in time")


def _mark(step: logs.Step, sentence: str) -> bytes:
    at = (step.ended_at or datetime.now(UTC)).astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z [kici] {sentence}".encode()


async def put(db: Db, step_id: str) -> None:
    """Ask for the compaction of a step's log."""
    await outbox.put(db, KIND, step_id, dedupe_key=f"{KIND}:{step_id}")
