"""How an agent leaves: it takes no more jobs, sees those through that it has, tells their end, says goodbye.

SIGTERM and SIGINT give jobs a short time, then cancel them, then kill them. SIGUSR1 lets them finish, however long they
take; a SIGTERM that comes meanwhile still shortens that. More signals of the same kind change nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

KILL_S = 10.0
REPORT_S = 5.0
"""For the last reports to be acknowledged."""


class Crew(Protocol):
    def drain(self) -> None: ...

    def cancel_all(self, reason: str, *, force: bool = False) -> None: ...

    async def idle(self) -> None: ...


class Drain:
    def __init__(self, *, drain_s: float) -> None:
        self._drain_s = drain_s
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()

    def listen(self) -> None:
        """Take over the process's signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.hurry)
        loop.add_signal_handler(signal.SIGUSR1, self.ask)

    def ask(self) -> None:
        """Finish what runs, then leave."""
        self._asked.set()

    def hurry(self) -> None:
        self._hurry.set()
        self._asked.set()

    async def run(self, crew: Crew, reports: Awaitable[None]) -> None:
        """Wait for a signal; return when the agent may go. `reports` ends when everything told is acknowledged."""
        await self._asked.wait()
        log.info("draining", hurry=self._hurry.is_set())
        crew.drain()
        await self._idle_or_hurry(crew)
        if self._hurry.is_set():
            await self._end_jobs(crew)
        if not await _within(REPORT_S, reports):
            log.warning("left before everything was acknowledged")

    async def _idle_or_hurry(self, crew: Crew) -> None:
        waits = [asyncio.ensure_future(crew.idle()), asyncio.ensure_future(self._hurry.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _end_jobs(self, crew: Crew) -> None:
        if await _within(self._drain_s, crew.idle()):
            return
        crew.cancel_all("the agent was stopped")
        if await _within(self._drain_s, crew.idle()):
            return
        crew.cancel_all("the agent was stopped", force=True)
        if not await _within(KILL_S, crew.idle()):
            log.error("left with jobs that could not be killed, or not be removed")


async def _within(seconds: float, done: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await done
    except TimeoutError:
        return False
    return True
