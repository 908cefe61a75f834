from __future__ import annotations

import asyncio

from kici.agent.drain import Drain


class Crew:
    """Jobs that end when told so by the test, or by a cancellation of the given kind."""

    def __init__(self, ends_on: str = "") -> None:
        self.told: list[str] = []
        self.done = asyncio.Event()
        self._ends_on = ends_on

    def drain(self) -> None:
        self.told.append("drain")

    def cancel_all(self, reason: str, *, force: bool = False) -> None:
        self.told.append("kill" if force else "cancel")
        if self._ends_on == self.told[-1]:
            self.done.set()

    async def idle(self) -> None:
        await self.done.wait()


async def nothing() -> None:
    return


async def test_jobs_that_do_not_end_are_cancelled_then_killed() -> None:
    drain, crew = Drain(drain_s=0), Crew(ends_on="kill")
    drain.hurry()
    async with asyncio.timeout(5):
        await drain.run(crew, nothing())
    assert crew.told == ["drain", "cancel", "kill"]


async def test_a_cancelled_job_that_ends_is_not_killed() -> None:
    drain, crew = Drain(drain_s=0), Crew(ends_on="cancel")
    drain.hurry()
    drain.hurry()
    async with asyncio.timeout(5):
        await drain.run(crew, nothing())
    assert crew.told == ["drain", "cancel"]


async def test_asked_politely_it_waits_for_jobs_however_long_until_somebody_is_in_a_hurry() -> None:
    drain, crew = Drain(drain_s=0), Crew(ends_on="cancel")
    drain.ask()
    leaving = asyncio.ensure_future(drain.run(crew, nothing()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert crew.told == ["drain"]
    drain.hurry()
    async with asyncio.timeout(5):
        await leaving
    assert crew.told == ["drain", "cancel"]


async def test_asked_politely_with_no_jobs_it_leaves_at_once() -> None:
    drain, crew = Drain(drain_s=1000), Crew()
    crew.done.set()
    drain.ask()
    async with asyncio.timeout(5):
        await drain.run(crew, nothing())
    assert crew.told == ["drain"]
