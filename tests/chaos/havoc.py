"""What is done to the cluster, in an order that the seed decides: kill -9, immediate stops, freezing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine

from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError
from tests.chaos.cluster import Cluster
from tests.support.processes import Coordinator, Process

WEIGHTS = {
    "agent": 60,
    "coordinator": 14,
    "both coordinators": 4,
    "PostgreSQL (kill -9)": 6,
    "PostgreSQL (immediate stop)": 6,
    "coordinator frozen past its lease": 6,
    "agents at once": 4,
}
"""Each kind comes once before chance decides."""
IN_RECOVERY = 0.25
"""The chance that a coordinator or PostgreSQL is struck although the last such blow is not over: with more, nothing
would ever serve on a slow machine."""
COMES_BACK_S = 90
"""Whatever was killed serves again by then."""


class Havoc:
    """`run` goes on until cancelled, and then leaves everything running."""

    def __init__(self, cluster: Cluster, seed: int, *, pause_s: tuple[float, float] = (0.3, 1.6)) -> None:
        self.done: Counter[str] = Counter()
        self.longest_outage = (0.0, "")
        """Seconds from a kill of a coordinator or of PostgreSQL until all that are not away on purpose were ready, and
        what the kill was."""
        self.failures: list[str] = []
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._pause = pause_s
        self._outages: set[asyncio.Task[None]] = set()
        """Blows to a coordinator or to PostgreSQL that are not over."""
        self._returns: set[asyncio.Task[None]] = set()
        self._postgres = asyncio.Lock()

    async def run(self) -> None:
        first = list(WEIGHTS)
        self._dice.shuffle(first)
        try:
            while True:
                await asyncio.sleep(self._dice.uniform(*self._pause))
                kind = first.pop() if first else self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
                if self._outages and not kind.startswith("agent") and self._dice.random() > IN_RECOVERY:
                    continue
                if await self._do(kind):
                    self.done[kind] += 1
        finally:
            if self._returns:
                await asyncio.wait(self._returns)

    async def _do(self, kind: str) -> bool:
        """False if its victim is down already."""
        dice, cluster = self._dice, self._cluster
        match kind:
            case "agent":
                return await self._kill(dice.choice(cluster.agents))
            case "agents at once":
                return any([await self._kill(agent) for agent in dice.sample(cluster.agents, len(cluster.agents) // 3)])
            case "coordinator":
                return await self._kill(dice.choice(cluster.coordinators))
            case "both coordinators":
                return all([await self._kill(coordinator) for coordinator in cluster.coordinators])
            case "coordinator frozen past its lease":
                return self._freeze(dice.choice(cluster.coordinators))
        return self._stop_postgres(signal.SIGKILL if "kill" in kind else signal.SIGQUIT)

    async def _kill(self, victim: Process) -> bool:
        if not victim.alive or victim.frozen:
            return False
        away_s = self._dice.uniform(0.1, 2.0)
        if self._dice.random() < 0.1:
            away_s += 9  # longer than every time-out
        killed = time.monotonic()
        await victim.kill()

        async def back() -> None:
            await asyncio.sleep(away_s)
            await victim.start()
            if isinstance(victim, Coordinator):
                await self._serving_again(killed, f"{victim.name} away for {away_s:.1f} s")

        self._later(back(), outage=isinstance(victim, Coordinator))
        return True

    def _freeze(self, victim: Coordinator) -> bool:
        if not victim.alive or victim.frozen:
            return False
        away_s = self._dice.uniform(2.5, 5.0)
        frozen = time.monotonic()
        victim.freeze()

        async def back() -> None:
            await asyncio.sleep(away_s)
            victim.thaw()
            await self._serving_again(frozen, "coordinator frozen")

        self._later(back(), outage=True)
        return True

    def _stop_postgres(self, number: signal.Signals) -> bool:
        if self._postgres.locked():
            return False
        away_s = self._dice.uniform(0.1, 2.0)
        if self._dice.random() < 0.15:
            away_s += 7

        async def away() -> None:
            async with self._postgres:
                server, killed = self._cluster.postgres, time.monotonic()
                assert server.pid
                os.kill(server.pid, number)
                await asyncio.sleep(away_s)
                await _started(server.start)
                await self._serving_again(killed, f"PostgreSQL away for {away_s:.1f} s")

        self._later(away(), outage=True)
        return True

    async def _serving_again(self, since: float, what: str) -> None:
        http = self._cluster.http
        async with asyncio.timeout(COMES_BACK_S):
            for one in self._cluster.coordinators:
                await one.revive()
                while one.alive and not one.frozen and not await one.is_ready(http):
                    await asyncio.sleep(0.05)
                    await one.revive()
        self.longest_outage = max(self.longest_outage, (time.monotonic() - since, what))

    def _later(self, back: Coroutine[None, None, None], *, outage: bool) -> None:
        task = asyncio.create_task(back)
        self._returns.add(task)
        if outage:
            self._outages.add(task)
            task.add_done_callback(self._outages.discard)
        task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._returns.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(f"something that was killed did not come back: {error!r}")


async def _started(start: Callable[[], Awaitable[str]]) -> None:
    """Until the server has recovered: one that was killed may refuse at first."""
    async with asyncio.timeout(60):
        while True:
            try:
                await start()
            except EmbeddedPostgresError:
                await asyncio.sleep(0.2)
            else:
                return
