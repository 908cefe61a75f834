from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kici.orchestrator import services
from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.services import Stage, run_stages, supervise


class Watched:
    """Tells when it began and when it ended."""

    def __init__(self, name: str, told: list[str], *, began: asyncio.Event | None = None) -> None:
        self.name = name
        self._told = told
        self.began = began or asyncio.Event()

    async def run(self) -> None:
        self._told.append(f"+{self.name}")
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self._told.append(f"-{self.name}")


class Failing:
    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.lives = asyncio.Event()

    async def run(self) -> None:
        if not self._failures:
            self.lives.set()
            await asyncio.Event().wait()
        failure = self._failures.pop(0)
        if failure is not None:
            raise failure


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PAUSE_S", (0.0, 0.0))


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_stages_stop_in_the_opposite_order_of_their_start() -> None:
    told: list[str] = []
    ground, writer, front = (Watched(name, told) for name in ("ground", "writer", "front"))
    task = asyncio.create_task(
        run_stages([Stage("a", [ground]), Stage("none", []), Stage("b", [writer]), Stage("c", [front])])
    )
    async with asyncio.timeout(5):
        await front.began.wait()
    await stopped(task)
    assert told == ["+ground", "+writer", "+front", "-front", "-writer", "-ground"]


async def test_a_second_cancel_does_not_wait_for_the_stage_that_is_stopping() -> None:
    stopping = asyncio.Event()

    class Slow:
        async def run(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await asyncio.sleep(3600)

    told: list[str] = []
    ground = Watched("ground", told)
    task = asyncio.create_task(run_stages([Stage("a", [ground]), Stage("b", [Slow()])]))
    async with asyncio.timeout(5):
        await ground.began.wait()
        await asyncio.sleep(0)
        task.cancel()
        await stopping.wait()
    await stopped(task)
    assert told == ["+ground", "-ground"]
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.parametrize("failure", [RuntimeError("a fault"), ConnectionResetError(), None])
async def test_a_service_that_fails_or_ends_is_started_again(failure: Exception | None) -> None:
    service = Failing(failure, failure)
    before = _failures()
    task = asyncio.create_task(supervise(service))
    async with asyncio.timeout(5):
        await service.lives.wait()
    await stopped(task)
    assert _failures() == before + 2


async def test_one_that_fails_does_not_take_its_neighbours_with_it() -> None:
    told: list[str] = []
    neighbour, failing = Watched("neighbour", told), Failing(RuntimeError())
    task = asyncio.create_task(Stage("s", [neighbour, failing]).run())
    async with asyncio.timeout(5):
        await failing.lives.wait()
    assert told == ["+neighbour"]
    await stopped(task)


async def test_what_is_to_pass_passes() -> None:
    with pytest.raises(LeaseLost):
        await supervise(Failing(LeaseLost("x")), passes=LeaseLost)


def _failures() -> float:
    read: Callable[[], float] = services.FAILURES.labels("Failing")._value.get
    return read()
