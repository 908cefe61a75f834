"""Writes what the agents of this coordinator say about their jobs: many frames in one commit, each answered after
it."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import structlog
from asyncpg import Pool, Record
from msgspec import structs

from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.orchestrator.lifecycle.batch import Batch
from kici.orchestrator.lifecycle.frames import Answer, Busy, Item, Outcome, Refused, SessionRef, StatusFrame
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.store.database import Db, is_away, is_transient
from kici.orchestrator.store.group_commit import GroupCommit
from kici.wire.agent import JobStatusChanged

log = structlog.get_logger(__name__)

MAX_ITEMS = 256
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class _Poison(Exception):
    """The frame makes its transaction fail, whatever else is in it."""


class StatusWriter:
    """`submit` answers only after the commit, and only while this coordinator has its lease: `hold` raises
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
        self._waiting: defaultdict[str, list[int]] = defaultdict(list)
        """Job → numbers of its frames that are not answered yet, ascending."""
        self._commits: GroupCommit[Item, Outcome] = GroupCommit(self._apply, max_items=MAX_ITEMS)

    async def run(self) -> None:
        await self._commits.run()

    async def submit(self, session: SessionRef, frame: StatusFrame) -> Answer:
        """Returns once it is decided, however long the database is away. A frame that cannot be applied is refused."""
        if not _UUID.fullmatch(frame.job_id):
            return Refused(f"there is no job {frame.job_id!r}")
        item = Item(next(self._numbers), session, frame)
        self._waiting[item.job_id].append(item.number)
        try:
            try:
                return await self._until_decided(item)
            except _Poison as poison:
                if not isinstance(frame, JobStatusChanged):
                    return Refused(str(poison))
                # The job has ended all the same, and must not hang because its end could not be told.
                return await self._until_decided(structs.replace(item, frame=_plain_end(frame, poison)))
        except _Poison as poison:
            return Refused(str(poison))
        finally:
            self._answered(item)

    async def _until_decided(self, item: Item) -> Answer:
        pause = FIRST_PAUSE_S
        while isinstance(outcome := await self._try(item), Busy):
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return outcome

    async def _try(self, item: Item) -> Outcome:
        try:
            return await self._commits.submit(item)
        except Exception as error:
            if isinstance(error, Unavailable) or is_away(error) or is_transient(error):
                return Busy()
            log.exception("a message could not be applied", job=item.job_id, agent=item.session.agent_id)
            raise _Poison(f"it could not be stored: {type(error).__name__}") from error

    async def _apply(self, items: Sequence[Item]) -> list[Outcome]:
        batch = Batch(self._limits, self._in_turn(items))
        try:
            async with self._pool.acquire() as db, db.transaction():
                await self._hold(db)
                await batch.apply(db)
        except LeaseLost:
            return [Busy() for _ in items]
        batch.locked.wakes.send(self._notifier)
        outcomes = [batch.outcomes.get(item.number, Busy()) for item in items]
        for item, outcome in zip(items, outcomes, strict=True):
            if not isinstance(outcome, Busy):
                self._answered(item)
        return outcomes

    def _in_turn(self, items: Sequence[Item]) -> list[Item]:
        """Those before which nothing of the same job waits outside the batch, in the order in which they came."""
        here = {item.number for item in items}
        blocked_from = {
            job_id: next((number for number in self._waiting[job_id] if number not in here), None)
            for job_id in {item.job_id for item in items}
        }
        return sorted(
            (item for item in items if (first := blocked_from[item.job_id]) is None or item.number < first),
            key=lambda item: item.number,
        )

    def _answered(self, item: Item) -> None:
        numbers = self._waiting.get(item.job_id)
        if numbers and item.number in numbers:
            numbers.remove(item.number)
        if not numbers:
            self._waiting.pop(item.job_id, None)


def _plain_end(frame: JobStatusChanged, poison: _Poison) -> JobStatusChanged:
    error = f"the agent reported the end as {frame.status}, but {poison}"
    return JobStatusChanged(frame.job_id, frame.attempt, "failed", frame.at_ms, error=error)
