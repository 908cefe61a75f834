"""Writes what the agents of this coordinator say about their jobs: many frames in one commit, each answered after
it."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog
from asyncpg import Pool, Record
from msgspec import structs

from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.orchestrator.lifecycle import status_metrics as metrics
from kici.orchestrator.lifecycle.batch import Batch
from kici.orchestrator.lifecycle.frames import Answer, Busy, Item, Kind, Outcome, Refused, SessionRef, StatusFrame
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.store.database import Db, is_away, is_transient
from kici.orchestrator.store.group_commit import GroupCommit
from kici.wire.agent import JobStatusChanged

log = structlog.get_logger(__name__)

MAX_ITEMS = 1_024
LINES = 2
"""Batches on their way at once: PostgreSQL works on one while the other is prepared or answered."""
MAX_RUNS = 100_000
"""Remembered; what is forgotten costs a batch that finds a run locked."""
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class _Pending:
    """A frame that is not answered yet, and who is told. What `GroupCommit` wants for an answer."""

    __slots__ = ("_plain", "_writer", "came_at", "item", "on_answer", "pause", "submitted")

    def __init__(self, writer: StatusWriter, item: Item, on_answer: Callable[[Answer], None]) -> None:
        self._writer = writer
        self._plain = False
        self.item = item
        self.on_answer = on_answer
        self.pause = FIRST_PAUSE_S
        self.came_at = time.perf_counter()
        self.submitted = False
        """In the queue or in a batch; not while it pauses, nor after its answer."""

    def done(self) -> bool:
        return not self.submitted

    def set_result(self, outcome: Outcome) -> None:
        if isinstance(outcome, Busy):
            self._writer.later(self)
        else:
            self._writer.answer(self, outcome)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, Unavailable) or is_away(error) or is_transient(error):
            self._writer.later(self)
            return
        log.error(
            "a message could not be applied", job=self.item.job_id, agent=self.item.session.agent_id, exc_info=error
        )
        why = f"it could not be stored: {type(error).__name__}"
        frame = self.item.frame
        if self._plain or not isinstance(frame, JobStatusChanged):
            self._writer.answer(self, Refused(why, Kind.POISON))
            return
        self.submitted = False
        # The job has ended all the same, and must not hang because its end could not be told.
        self._plain = True
        self.item = structs.replace(self.item, frame=_plain_end(frame, why))
        self._writer.again(self)


class StatusWriter:
    """`put` has a frame answered only after its commit, and only while this coordinator has its lease: `hold` raises
    `LeaseLost` in the writing transaction if it has lapsed.

    Frames of one job are applied in the order in which they came, also when one of them has to wait for a row.
    """

    def __init__(
        self,
        pool: Pool[Record],
        notifier: Notifies,
        limits: Limits,
        *,
        hold: Callable[[Db], Awaitable[object]],
    ) -> None:
        self._pool = pool
        self._notifier = notifier
        self._limits = limits
        self._hold = hold
        self._numbers = itertools.count(1)
        self._waiting: dict[str, list[int]] = {}
        """Job → numbers of its frames that are not answered yet, ascending."""
        self._runs: dict[str, str] = {}
        """Job → run, of jobs that were heard of."""
        self._commits: GroupCommit[Item, Outcome] = GroupCommit(
            self._apply, max_items=MAX_ITEMS, lines=LINES, key=self._key
        )

    async def run(self) -> None:
        await self._commits.run()

    def put(self, session: SessionRef, frame: StatusFrame, on_answer: Callable[[Answer], None]) -> None:
        """`on_answer` is told once it is decided, however long the database is away; it must not wait or raise. A
        frame that cannot be applied is refused."""
        if not _UUID.fullmatch(frame.job_id):
            on_answer(Refused(f"there is no job {frame.job_id!r}", Kind.UNKNOWN))
            return
        item = Item(next(self._numbers), session, frame)
        self._waiting.setdefault(item.job_id, []).append(item.number)
        self.again(_Pending(self, item, on_answer))

    async def submit(self, session: SessionRef, frame: StatusFrame) -> Answer:
        """`put`, and wait for the answer."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self.put(session, frame, tell)
        return await answered

    # ── what pending frames ask for ───────────────────────────────────────────────────────────────────────────────────

    def again(self, pending: _Pending) -> None:
        pending.submitted = True
        self._commits.put(pending.item, pending)

    def later(self, pending: _Pending) -> None:
        """After a pause that grows: a row is locked elsewhere, the database is away, an earlier frame waits."""
        metrics.PUT_OFF.inc()
        pending.submitted = False
        asyncio.get_running_loop().call_later(pending.pause * random.uniform(0.5, 1.5), self.again, pending)
        pending.pause = min(2 * pending.pause, LONGEST_PAUSE_S)

    def answer(self, pending: _Pending, answer: Answer) -> None:
        pending.submitted = False
        self._answered(pending.item)
        metrics.APPLY_S.observe(time.perf_counter() - pending.came_at)
        if isinstance(answer, Refused):
            metrics.REFUSED.labels(answer.kind).inc()
        pending.on_answer(answer)

    # ── a batch ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _apply(self, items: Sequence[Item]) -> list[Outcome]:
        batch = Batch(self._limits, self._in_turn(items))
        try:
            async with self._pool.acquire() as db, db.transaction():
                await self._hold(db)
                await batch.apply(db)
        except LeaseLost:
            return [Busy() for _ in items]
        self._remember(batch)
        batch.locked.wakes.send(self._notifier)
        metrics.BATCH.observe(len(items))
        metrics.REPEATED.inc(batch.repeated)
        return [batch.outcomes.get(item.number, _BUSY) for item in items]

    def _key(self, item: Item) -> str:
        """Batches that are on their way together do not touch the same run, or one would put off what is locked."""
        return self._runs.get(item.job_id, item.job_id)

    def _remember(self, batch: Batch) -> None:
        if len(self._runs) > MAX_RUNS:
            self._runs.clear()
        for job in batch.locked.jobs.values():
            if job.ended:
                self._runs.pop(job.job_id, None)
            else:
                self._runs[job.job_id] = job.run_id

    def _in_turn(self, items: Sequence[Item]) -> list[Item]:
        """Those before which nothing of the same job waits outside the batch, in the order in which they came."""
        here = {item.number for item in items}
        blocked_from = {
            job_id: next((number for number in self._waiting[job_id] if number not in here), None)
            for job_id in {item.job_id for item in items}
        }
        return sorted(
            (item for item in items if (first := blocked_from[item.job_id]) is None or item.number < first),
            key=_number,
        )

    def _answered(self, item: Item) -> None:
        numbers = self._waiting[item.job_id]
        numbers.remove(item.number)
        if not numbers:
            del self._waiting[item.job_id]


_BUSY = Busy()


def _number(item: Item) -> int:
    return item.number


def _plain_end(frame: JobStatusChanged, why: str) -> JobStatusChanged:
    error = f"the agent reported the end as {frame.status}, but {why}"
    return JobStatusChanged(frame.job_id, frame.attempt, "failed", frame.at_ms, error=error)
