"""Many writers, few commits: what arrives while one transaction commits goes together into the next.

One item alone is applied at once, so latency at low load is that of one commit, and throughput rises with load.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.store.database import is_away, is_transient

Item = TypeVar("Item")
Result = TypeVar("Result")
Told = TypeVar("Told", contravariant=True)

log = structlog.get_logger(__name__)

STOPPING = "this coordinator is stopping: try again"
AWAY = "the database cannot be reached: nothing was accepted, try again"
TRIES = 4
"""Of a transaction that meets a deadlock or a serialization failure."""


class Answer(Protocol[Told]):
    """Who waits for an item. A future is one; what comes by the thousand is something lighter."""

    def done(self) -> bool:
        """Nobody waits any more: not yet begun, the item is not applied."""

    def set_result(self, result: Told, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class GroupCommit(Generic[Item, Result]):
    """Submitters wait for `submit`, or `put` and are told; `run` is the service that applies.

    Laws: every submitted item is answered once. It is answered with its result only after the `apply` that held it has
    returned, so after its commit. Items are applied in the order of arrival. An item that makes a batch fail is found
    by halving, and its submitter alone gets the exception; so `apply` is one transaction that leaves nothing behind
    when it raises. Where the database is away everybody who waits gets `Unavailable` at once: the item may or may not
    be stored then, and what sends it again must be idempotent.
    """

    def __init__(
        self,
        apply: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_items: int,
        max_bytes: int | None = None,
        size_of: Callable[[Item], int] | None = None,
        max_waiting: int | None = None,
        timeout_s: float = 5.0,
        lines: int = 1,
        key: Callable[[Item], object] | None = None,
    ) -> None:
        """A batch has up to `max_items`, and up to `max_bytes` by `size_of` (a larger item goes alone).

        `max_waiting` items wait in the queue, ten batches by default; whoever comes then waits for room.
        `timeout_s` bounds one `apply`; a database that is silent for longer is taken for away.
        With several `lines` so many batches are on their way at once: while one commits, the next is prepared. Items
        of one `key` are never in two of them, and keep their order.
        """
        if lines < 1 or (lines > 1 and key is None):
            raise ValueError("lines must be positive, and several of them need key")
        if max_items < 1 or (max_bytes is not None and size_of is None):
            raise ValueError("max_items must be positive, and max_bytes needs size_of")
        self._apply = apply
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size_of = size_of or (lambda item: 0)
        self._timeout = timeout_s
        self._room = asyncio.Semaphore(max_waiting or 10 * max_items)
        self._waiting: deque[tuple[Item, Answer[Result]]] = deque()
        self._arrived = asyncio.Event()
        self._stopped = False
        self._lines = lines
        self._key = key
        self._on_their_way: set[object] = set()

    async def submit(self, item: Item) -> Result:
        """Have the item applied and answer its result. Cancelled before its batch began, it is not applied."""
        async with self._room:
            if self._stopped:
                raise Unavailable(STOPPING)
            answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            self.put(item, answer)
            return await answer

    def put(self, item: Item, answer: Answer[Result]) -> None:
        """Have the item applied, without waiting for room: the caller bounds what is outstanding."""
        if self._stopped:
            answer.set_exception(Unavailable(STOPPING))
            return
        self._waiting.append((item, answer))
        self._arrived.set()

    async def run(self) -> None:
        """Batch after batch until cancelled; then those who still wait get `Unavailable`."""
        self._stopped = False
        try:
            async with asyncio.TaskGroup() as lines:
                for _ in range(self._lines):
                    lines.create_task(self._line())
        finally:
            self._stopped = True
            self._refuse([], STOPPING)

    async def _line(self) -> None:
        batch: list[tuple[Item, Answer[Result]]] = []
        try:
            while True:
                await self._arrived.wait()
                batch = self._take()
                if not batch:
                    self._arrived.clear()
                    continue
                keys = {self._key(item) for item, _ in batch} if self._key else set()
                self._on_their_way |= keys
                try:
                    await self._settle(batch)
                except _Away as away:
                    waited = len(batch) + len(self._waiting)
                    log.warning("the database is away: refused what waited", items=waited, error=repr(away.__cause__))
                    self._refuse(batch, AWAY)
                finally:
                    self._on_their_way -= keys
                    self._arrived.set()  # what waited for one of these keys
                batch = []
        finally:
            self._refuse(batch, STOPPING)

    def _take(self) -> list[tuple[Item, Answer[Result]]]:
        batch: list[tuple[Item, Answer[Result]]] = []
        blocked: list[tuple[Item, Answer[Result]]] = []
        size = 0
        while self._waiting and len(batch) < self._max_items:
            item, answer = self._waiting[0]
            if self._key is not None and self._key(item) in self._on_their_way:
                blocked.append(self._waiting.popleft())
                continue
            if not answer.done():  # cancelled
                size += self._size_of(item)
                if batch and self._max_bytes is not None and size > self._max_bytes:
                    break
                batch.append((item, answer))
            self._waiting.popleft()
        self._waiting.extendleft(reversed(blocked))
        return batch

    async def _settle(self, batch: Sequence[tuple[Item, Answer[Result]]]) -> None:
        """Answer everybody in the batch, or raise `_Away`."""
        try:
            results = await self._applied([item for item, _ in batch])
        except _Away:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is for the submitter whose item it was
            if len(batch) == 1:
                _, answer = batch[0]
                if not answer.done():
                    answer.set_exception(error)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for (_, answer), result in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    async def _applied(self, items: list[Item]) -> Sequence[Result]:
        tries = TRIES
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    results = await self._apply(items)
            except Exception as error:
                if isinstance(error, Unavailable) or is_away(error):
                    raise _Away from error
                tries -= 1
                if not tries or not is_transient(error):
                    raise
                await asyncio.sleep(random.uniform(0.001, 0.05))
            else:
                if len(results) != len(items):
                    raise RuntimeError(f"{len(items)} items were applied, but {len(results)} results came back")
                return results

    def _refuse(self, batch: Sequence[tuple[Item, Answer[Result]]], why: str) -> None:
        """Tell everybody who has no answer yet, in the batch and behind it."""
        refused = (*batch, *self._waiting)
        self._waiting.clear()
        for _, answer in refused:
            if not answer.done():
                answer.set_exception(Unavailable(why))


class _Away(Exception):
    """The database, not an item, is the reason: its cause says how that showed."""
