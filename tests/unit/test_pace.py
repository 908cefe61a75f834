from __future__ import annotations

import asyncio
from datetime import timedelta

from kici.orchestrator.pace import Pace


async def test_the_first_pass_comes_at_once_and_the_next_waits_until_woken() -> None:
    pace = Pace(timedelta(hours=1))
    passes = aiter(pace)
    assert await anext(passes) is pace

    second = asyncio.ensure_future(anext(passes))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()

    pace.wake()
    async with asyncio.timeout(5):
        assert await second is pace


async def test_a_service_that_is_started_again_makes_a_pass_at_once() -> None:
    pace = Pace(timedelta(hours=1))
    for _ in range(2):
        async with asyncio.timeout(5):
            assert await anext(aiter(pace)) is pace
