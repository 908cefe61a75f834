from __future__ import annotations

import asyncio

from kici.agent.silence import Silence


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0
        self.moved = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        wake = self.now + seconds
        while self.now < wake:
            self.moved.clear()
            await self.moved.wait()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.moved.set()


async def test_the_count_starts_at_the_sending_of_the_last_acknowledged_heartbeat() -> None:
    time = FakeTime()
    silence = Silence(time.clock)
    first, second = silence.sending(), 0
    time.advance(5)
    second = silence.sending()
    time.advance(1)
    silence.acknowledged(first)
    assert silence.left(10, accepted_at=0) == 4
    silence.acknowledged(second)
    assert silence.left(10, accepted_at=0) == 9


async def test_an_answer_to_an_older_heartbeat_does_not_set_the_count_back() -> None:
    time = FakeTime()
    silence = Silence(time.clock)
    first = silence.sending()
    time.advance(5)
    silence.acknowledged(silence.sending())
    silence.acknowledged(first)
    silence.acknowledged(99)
    assert silence.left(10, accepted_at=0) == 10


async def test_before_any_heartbeat_the_acceptance_counts() -> None:
    time = FakeTime()
    assert Silence(time.clock).left(10, accepted_at=time.now - 3) == 7


async def test_the_end_comes_when_nothing_is_left_and_not_before() -> None:
    time = FakeTime()
    silence = Silence(time.clock, time.sleep)
    end = asyncio.ensure_future(silence.exceeds(10, accepted_at=time.now))
    for _ in range(12):
        time.advance(0.75)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not end.done()
    number = silence.sending()
    silence.acknowledged(number)
    time.advance(9.5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not end.done()
    # A suspended machine wakes up much later.
    time.advance(1000)
    async with asyncio.timeout(5):
        await end
