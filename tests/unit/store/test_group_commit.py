from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.store.group_commit import TRIES, GroupCommit


class Poison(Exception):
    pass


class Database:
    """Applies batches whole or not at all. `hold` keeps a batch open until `release`."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.began = asyncio.Event()
        self._released = asyncio.Event()
        self.failures: list[BaseException] = []
        if not held:
            self._released.set()

    def release(self) -> None:
        self._released.set()

    async def apply(self, items: Sequence[int]) -> list[int]:
        self.began.set()
        await self._released.wait()
        if self.failures:
            raise self.failures.pop(0)
        if any(item < 0 for item in items):
            raise Poison(min(items))
        self.batches.append(list(items))
        return [item * 10 for item in items]


@asynccontextmanager
async def running(commit: GroupCommit[int, int]) -> AsyncIterator[None]:
    service = asyncio.create_task(commit.run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service


async def test_one_item_alone_is_applied_at_once() -> None:
    database = Database()
    async with running(commit := GroupCommit(database.apply, max_items=10)):
        assert await commit.submit(1) == 10
    assert database.batches == [[1]]


async def test_what_arrives_during_a_commit_goes_together_into_the_next() -> None:
    database = Database(held=True)
    async with running(commit := GroupCommit(database.apply, max_items=10)):
        first = asyncio.create_task(commit.submit(1))
        await database.began.wait()
        others = [asyncio.create_task(commit.submit(n)) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        database.release()
        assert await asyncio.gather(first, *others) == [10, 20, 30, 40]
    assert database.batches == [[1], [2, 3, 4]]


async def test_a_batch_is_bounded_by_items_and_by_bytes_and_a_giant_goes_alone() -> None:
    database = Database(held=True)
    commit = GroupCommit(database.apply, max_items=3, max_bytes=10, size_of=lambda item: item)
    async with running(commit):
        first = asyncio.create_task(commit.submit(1))
        await database.began.wait()
        others = [asyncio.create_task(commit.submit(n)) for n in (4, 6, 50, 1, 2, 3, 4)]
        await asyncio.sleep(0)
        database.release()
        await asyncio.gather(first, *others)
    assert database.batches == [[1], [4, 6], [50], [1, 2, 3], [4]]


@given(st.lists(st.integers(-3, 1000), max_size=25), st.integers(1, 7))
def test_every_item_is_answered_once_and_poison_harms_nobody_else(items: list[int], max_items: int) -> None:
    async def scenario() -> tuple[list[int | BaseException], list[list[int]]]:
        database = Database()
        async with running(commit := GroupCommit(database.apply, max_items=max_items)):
            answers = await asyncio.gather(*map(commit.submit, items), return_exceptions=True)
        return answers, database.batches

    answers, batches = asyncio.run(scenario())
    for item, answer in zip(items, answers, strict=True):
        if item < 0:
            assert isinstance(answer, Poison)
        else:
            assert answer == item * 10
    assert [item for batch in batches for item in batch] == [item for item in items if item >= 0]
    assert all(len(batch) <= max_items for batch in batches)


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionRefusedError(),
        asyncpg.ConnectionDoesNotExistError(),
        asyncpg.CannotConnectNowError(),
        asyncpg.DiskFullError(),
        Unavailable("away"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_when_the_database_is_away_everybody_who_waits_hears_it_at_once(failure: Exception) -> None:
    database = Database(held=True)
    database.failures = [failure]
    async with running(commit := GroupCommit(database.apply, max_items=2)):
        submitted = [asyncio.create_task(commit.submit(n)) for n in range(6)]
        await database.began.wait()
        await asyncio.sleep(0)
        database.release()
        answers = await asyncio.gather(*submitted, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert await commit.submit(7) == 70


async def test_a_silent_database_is_taken_for_away() -> None:
    database = Database(held=True)
    async with running(commit := GroupCommit(database.apply, max_items=2, timeout_s=0.01)):
        with pytest.raises(Unavailable):
            await commit.submit(1)


async def test_a_deadlock_is_tried_again_with_bounds() -> None:
    database = Database()
    database.failures = [asyncpg.DeadlockDetectedError()] * (TRIES - 1)
    async with running(commit := GroupCommit(database.apply, max_items=2)):
        assert await commit.submit(1) == 10
        database.failures = [asyncpg.SerializationError()] * TRIES
        with pytest.raises(asyncpg.SerializationError):
            await commit.submit(2)


async def test_an_item_whose_submitter_gave_up_in_time_is_not_applied() -> None:
    database = Database(held=True)
    async with running(commit := GroupCommit(database.apply, max_items=10)):
        first = asyncio.create_task(commit.submit(1))
        await database.began.wait()
        gone, stays = asyncio.create_task(commit.submit(2)), asyncio.create_task(commit.submit(3))
        await asyncio.sleep(0)
        gone.cancel()
        database.release()
        assert [await first, await stays] == [10, 30]
    assert database.batches == [[1], [3]]
    assert gone.cancelled()


async def test_a_submitter_that_gives_up_during_its_batch_harms_nobody() -> None:
    database = Database(held=True)
    async with running(commit := GroupCommit(database.apply, max_items=10)):
        gone = asyncio.create_task(commit.submit(1))
        await database.began.wait()
        stays = asyncio.create_task(commit.submit(2))
        gone.cancel()
        database.release()
        assert await stays == 20
        assert await commit.submit(3) == 30


async def test_those_who_wait_when_it_stops_are_told() -> None:
    database = Database(held=True)
    commit = GroupCommit(database.apply, max_items=1)
    async with running(commit):
        submitted = [asyncio.create_task(commit.submit(n)) for n in range(3)]
        await database.began.wait()
        await asyncio.sleep(0)
    answers = await asyncio.gather(*submitted, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    with pytest.raises(Unavailable, match="stopping"):
        await commit.submit(9)


async def test_the_queue_is_bounded_and_the_rest_wait_for_room_in_order() -> None:
    database = Database(held=True)
    commit = GroupCommit(database.apply, max_items=2, max_waiting=3)
    async with running(commit):
        submitted = [asyncio.create_task(commit.submit(n)) for n in range(20)]
        await database.began.wait()
        await asyncio.sleep(0)
        assert len(commit._waiting) <= 3
        database.release()
        assert await asyncio.gather(*submitted) == [n * 10 for n in range(20)]
    assert [item for batch in database.batches for item in batch] == list(range(20))


async def test_an_apply_that_answers_too_little_is_a_fault_and_answers_nobody_wrongly() -> None:
    async def apply(items: Sequence[int]) -> list[int]:
        return []

    async with running(commit := GroupCommit(apply, max_items=5)):
        with pytest.raises(RuntimeError, match="1 items were applied, but 0 results"):
            await commit.submit(1)


class Lines:
    """Batches of letters with a number: the letter is the key. Each is held until it is let go."""

    def __init__(self) -> None:
        self.began: list[list[str]] = []
        self.applied: list[list[str]] = []
        self._changed = asyncio.Event()
        self._held: dict[int, asyncio.Event] = {}

    async def apply(self, items: Sequence[str]) -> list[str]:
        number = len(self.began)
        self.began.append(list(items))
        self._held[number] = asyncio.Event()
        self._changed.set()
        await self._held[number].wait()
        self.applied.append(list(items))
        return list(items)

    def let_go(self, number: int) -> None:
        self._held[number].set()

    async def until(self, batches: int) -> None:
        async with asyncio.timeout(5):
            while len(self.began) < batches:
                self._changed.clear()
                await self._changed.wait()


def two_lines(lines: Lines) -> GroupCommit[str, str]:
    return GroupCommit(lines.apply, max_items=10, lines=2, key=lambda item: item[0])


@asynccontextmanager
async def service(commit: GroupCommit[str, str]) -> AsyncIterator[None]:
    task = asyncio.create_task(commit.run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_next_batch_is_on_its_way_while_the_first_commits_but_not_with_one_of_its_keys() -> None:
    lines = Lines()
    commit = two_lines(lines)
    async with service(commit):
        submitted = [asyncio.create_task(commit.submit("a1"))]
        await lines.until(1)
        submitted += [asyncio.create_task(commit.submit(item)) for item in ("a2", "b1", "a3", "b2")]
        await lines.until(2)
        assert lines.began == [["a1"], ["b1", "b2"]]
        lines.let_go(1)
        await asyncio.wait([submitted[2], submitted[4]])
        assert len(lines.began) == 2
        lines.let_go(0)
        await lines.until(3)
        lines.let_go(2)
        assert await asyncio.gather(*submitted) == ["a1", "a2", "b1", "a3", "b2"]
    assert lines.applied == [["b1", "b2"], ["a1"], ["a2", "a3"]]


@given(st.lists(st.sampled_from("aab"), max_size=30), st.data())
def test_items_of_one_key_keep_their_order_whatever_commits_first(keys: str, data: st.DataObject) -> None:
    items = [f"{key}{number:02}" for number, key in enumerate(keys)]
    done: list[str] = []

    async def apply(batch: Sequence[str]) -> list[str]:
        for _ in range(data.draw(st.integers(0, 3))):
            await asyncio.sleep(0)
        done.extend(batch)
        return list(batch)

    async def scenario() -> None:
        commit: GroupCommit[str, str] = GroupCommit(apply, max_items=3, lines=3, key=lambda item: item[0])
        async with service(commit):
            assert await asyncio.gather(*map(commit.submit, items)) == items

    asyncio.run(scenario())
    for key in set(keys):
        assert [item for item in done if item[0] == key] == [item for item in items if item[0] == key]


async def test_it_can_be_started_again_after_it_stopped() -> None:
    database = Database()
    commit = GroupCommit(database.apply, max_items=2)
    async with running(commit):
        assert await commit.submit(1) == 10
    async with running(commit):
        await asyncio.sleep(0)  # it has begun
        assert await commit.submit(2) == 20


async def test_what_is_put_is_told_once_also_when_it_stops_in_the_midst_of_a_batch() -> None:
    database = Database(held=True)
    commit = GroupCommit(database.apply, max_items=1)
    told: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    async with running(commit):
        for number, answer in enumerate(told):
            commit.put(number, answer)
        await database.began.wait()
    assert [type(answer.exception()) for answer in told] == [Unavailable, Unavailable]
