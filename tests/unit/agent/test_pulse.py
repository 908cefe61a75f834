"""When a runner that does not answer is given up, by a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kici.agent.pulse import ASK_S, SILENT_S, TICK_S, Pulse


class World:
    """Time passes as the test says; `at` is called at each tick."""

    def __init__(self, at: Callable[[World], None] = lambda world: None, *, until_s: float = 1_000.0) -> None:
        self.now = 0.0
        self.asked: list[float] = []
        self.answers = False
        self.listens = True
        self.works = True
        self.stopped = False
        self.tick_s = TICK_S
        self._at = at
        self._until_s = until_s
        self.pulse = Pulse(
            ask=self._ask,
            listens=lambda: self.listens,
            works=lambda: self.works,
            is_stopped=lambda: self.stopped,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def lost(self) -> str:
        """Empty: nothing until `until_s`."""
        try:
            return await self.pulse.lost()
        except asyncio.CancelledError:
            return ""

    def _ask(self) -> None:
        self.asked.append(self.now)

    async def _sleep(self, seconds: float) -> None:
        assert seconds == TICK_S
        if self.now >= self._until_s:
            raise asyncio.CancelledError
        self.now += self.tick_s
        if self.answers and self.asked:
            self.pulse.answered()
        self._at(self)


async def test_one_that_answers_is_asked_again_and_again_and_never_given_up() -> None:
    world = World()
    world.answers = True
    assert await world.lost() == ""
    assert len(world.asked) > 1_000 / (ASK_S + 2 * TICK_S)


async def test_a_stopped_one_is_given_up_also_while_a_step_runs() -> None:
    world = World()
    world.stopped = True
    assert await world.lost() == "the runner did not answer for 60 s: it is stopped (SIGSTOP): the job was killed"
    assert SILENT_S <= world.now <= SILENT_S + ASK_S + 2 * TICK_S
    assert len(world.asked) == 1


async def test_a_step_that_keeps_the_loop_busy_has_all_its_time() -> None:
    world = World()
    assert await world.lost() == ""
    assert "the step blocks its event loop" in world.pulse.excuse()
    assert len(world.asked) == 1, "a question that waits is enough"


async def test_one_that_is_silent_while_no_step_runs_is_given_up() -> None:
    world = World()
    world.works = False
    assert await world.lost() == "the runner did not answer for 60 s while no step ran: the job was killed"


async def test_a_step_that_ends_its_silence_is_forgiven() -> None:
    def at(world: World) -> None:
        if world.now == 50:
            world.answers = True

    world = World(at)
    world.stopped = True
    assert await world.lost() == ""
    world.stopped = False
    assert world.pulse.excuse() == ""


async def test_time_in_which_we_did_not_listen_does_not_count() -> None:
    def at(world: World) -> None:
        world.listens = world.now % 30 != 0

    world = World(at)
    world.stopped = True
    assert await world.lost() == ""


async def test_a_machine_that_stood_still_is_not_held_against_the_runner() -> None:
    world = World(until_s=10_000)
    world.works, world.tick_s = False, 300.0
    lost = await world.lost()
    assert world.now >= SILENT_S / (2 * TICK_S) * 300.0
    assert "did not answer" in lost
