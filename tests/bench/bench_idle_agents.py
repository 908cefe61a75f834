"""What connected agents cost that do nothing: memory of the coordinator for each of 2,000, and the rows that are
written while 10,000 send their heartbeats.

The 2,000 are sockets of two other processes. The 10,000 are conversations inside one process, with everything behind
the socket real: their frames are handed over as if a socket had brought them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from asyncpg import Pool, Record

from kici.orchestrator.agents.conversation import Conversation
from kici.orchestrator.agents.roster import Agent
from kici.orchestrator.lifecycle.frames import SessionRef
from kici.wire.agent import AgentFrame, Heartbeat, agent_frames, unpack_orchestrator
from tests.bench import load
from tests.bench.harness import Result, machine, rss_mb
from tests.support import coordinator as in_process

NAMES = ("rss_per_idle_agent_kb", "heartbeat_writes_per_s")
CONNECTED = 2_000
SIMULATED = 10_000
HEARTBEAT_S = 5.0
WATCHED_S = 20.0
SETTLE_S = 3.0


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with load.server() as url:
        memory = await memory_per_agent(await load.database(url, "sockets"))
        writes = await writes_per_second(await load.database(url, "heartbeats"))
    return [_result("rss_per_idle_agent_kb", memory, "KB", 60), _result("heartbeat_writes_per_s", writes, "/s", 1)]


async def memory_per_agent(database: str) -> float:
    async with (
        load.backlog(database),
        load.coordinator(database) as coordinator,
        load.agents(coordinator, count=100, slots=1),
    ):
        await asyncio.sleep(SETTLE_S)  # everything that is made once is there
        before = rss_mb(coordinator.pid)
        async with load.agents(coordinator, count=CONNECTED, slots=1, first=100):
            await asyncio.sleep(SETTLE_S)
            return (rss_mb(coordinator.pid) - before) * 1024 / CONNECTED


async def writes_per_second(database: str) -> float:
    async with load.backlog(database) as backlog, in_process.running(database, leading=True) as coordinator:
        sessions = [str(uuid.uuid4()) for _ in range(SIMULATED)]
        await backlog.pool.execute(
            """
            insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, labels, slots)
            select id, id::text, 'bench', $2, 1, '{kici:os:linux}', 1 from unnest($1::uuid[]) as id
            """,
            sessions,
            coordinator.instance,
        )
        answered = 0

        def conversation(session: str) -> tuple[Conversation, Callable[[], None]]:
            inbox: asyncio.Queue[bytes] = asyncio.Queue()
            number = 0

            async def send(data: bytes) -> None:
                nonlocal answered
                answered += len(unpack_orchestrator(data))

            def beat() -> None:
                nonlocal number
                number += 1
                inbox.put_nowait(agent_frames.encode(AgentFrame(0, Heartbeat(number))))

            agent = Agent(
                SessionRef(session, session),
                labels=frozenset({load.LABEL}),
                slots=1,
                draining=False,
                lease_since=coordinator.lease.since,
                now=coordinator.roster.clock(),
            )
            coordinator.roster.add(agent)
            return Conversation(agent, coordinator.parts, receive=inbox.get, send=send), beat

        made = [conversation(session) for session in sessions]
        talking = [asyncio.create_task(one.serve()) for one, _ in made]
        try:
            await beat_for(HEARTBEAT_S, [beat for _, beat in made])
            before, began, seen = await written(backlog.pool), time.perf_counter(), answered
            await beat_for(WATCHED_S, [beat for _, beat in made])
            count = await written(backlog.pool) - before
            took = time.perf_counter() - began
        finally:
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)
        if answered - seen < SIMULATED:
            raise RuntimeError(f"only {answered - seen} heartbeats were answered")
        return count / took


async def beat_for(seconds: float, beats: list[Callable[[], None]]) -> None:
    """Every agent once in `HEARTBEAT_S`, spread over it as they are in life."""
    portion = len(beats) // 50
    for _ in range(round(seconds / HEARTBEAT_S)):
        for at in range(0, len(beats), portion):
            began = time.perf_counter()
            for beat in beats[at : at + portion]:
                beat()
            await asyncio.sleep(max(0.0, HEARTBEAT_S / 50 - (time.perf_counter() - began)))


async def written(pool: Pool[Record]) -> int:
    """Rows inserted, changed and deleted in this database so far."""
    await asyncio.sleep(1.5)  # backends report what they did within a second
    return int(
        await pool.fetchval(
            """
            select tup_inserted + tup_updated + tup_deleted from pg_stat_database where datname = current_database()
            """
        )
    )


def _result(name: str, value: float, unit: str, limit: float) -> Result:
    return Result(name, value, unit, samples=1, p50=value, p99=value, limit=limit, machine=machine())
