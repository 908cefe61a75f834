"""The log path of a real agent (masking, chunks, outbox, socket), without steps: it writes what the bench says.

`python -m tests.bench.log_agent` connects, takes two jobs, floods the log of `flood` as fast as it is let, writes a
line with the monotonic clock into the log of `ticks` every 20 ms, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kici.agent.connection import Connection
from kici.agent.log_stream import StepLog
from kici.agent.masking import Secrets
from kici.agent.outbox import Outbox
from kici.agent.silence import Silence
from kici.wire.agent import (
    AttemptRef,
    Cancel,
    Dispatch,
    Heartbeat,
    Hello,
    JobAccepted,
    StepStatusChanged,
    Welcome,
)
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN

PIECE_BYTES = 65_536
"""What a runner hands over at once."""
UNLIMITED = 1 << 40
TICK_S = 0.02


def output(size: int) -> list[bytes]:
    """About `size` bytes of a build's output, in pieces: words that come again, and numbers that do not."""
    text = bytearray()
    number = 0
    while len(text) < size:
        digest = hashlib.md5(number.to_bytes(8, "big")).hexdigest()
        text += b"[%5d/90000] Compiling CXX object src/module_%s/CMakeFiles/lib.dir/file_%s.cpp.o (%s ms)\n" % (
            number,
            digest[:3].encode(),
            digest[3:11].encode(),
            digest[11:15].encode(),
        )
        number += 1
    return [bytes(text[at : at + PIECE_BYTES]) for at in range(0, size, PIECE_BYTES)]


class LogAgent:
    """The receiver of a `Connection`: accepts every job and keeps its reference under the job's name."""

    def __init__(self, url: str, token: str) -> None:
        self.outbox = Outbox()
        self.jobs: dict[str, AttemptRef] = {}
        self.taken = asyncio.Event()
        self.secrets = Secrets(hashlib.sha256(b"%d" % number).hexdigest() for number in range(10))
        self._boot_id = str(uuid.uuid4())
        self._token = token
        self.connection = Connection(url, self, self.outbox, Silence())

    def hello(self) -> Hello:
        attempts = tuple(self.jobs.values())
        labels = ("kici:os:linux", "linux")
        return Hello(
            agent_id="log-agent",
            boot_id=self._boot_id,
            token=self._token,
            version="bench",
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            labels=labels,
            slots=2,
            clock_ms=int(time.time() * 1000),
            attempts=attempts,
        )

    def heartbeat(self, number: int) -> Heartbeat:
        return Heartbeat(number, tuple(self.jobs.values()))

    def welcomed(self, welcome: Welcome) -> None:
        pass

    def dispatched(self, dispatch: Dispatch) -> None:
        if dispatch.job not in self.jobs:
            self.jobs[dispatch.job] = AttemptRef(dispatch.job_id, dispatch.attempt)
            self.outbox.put(JobAccepted(dispatch.job_id, dispatch.attempt))
            now = int(time.time() * 1000)
            self.outbox.put(StepStatusChanged(dispatch.job_id, dispatch.attempt, 0, "step", "running", now))
            self.taken.set()

    def cancelled(self, cancel: Cancel) -> None:
        pass

    async def job(self, name: str) -> AttemptRef:
        async with asyncio.timeout(60):
            while name not in self.jobs:
                self.taken.clear()
                await self.taken.wait()
        return self.jobs[name]

    def log(self, job: AttemptRef, step_index: int = 0) -> StepLog:
        return StepLog(self.outbox, job, step_index, self.secrets, limit_bytes=UNLIMITED)


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[LogAgent]:
    agent = LogAgent(url, token)
    life = asyncio.create_task(agent.connection.run())
    try:
        yield agent
    finally:
        life.cancel()
        await asyncio.wait([life])


async def flood(log: StepLog) -> None:
    pieces = output(8 * 1024 * 1024)
    while True:
        for piece in pieces:
            await log.write(piece)
            await asyncio.sleep(0)


async def tick(log: StepLog) -> None:
    while True:
        await log.write(b"%d\n" % time.monotonic_ns())
        await asyncio.sleep(TICK_S)


async def main() -> None:
    async with connected(os.environ["LOG_AGENT_URL"], os.environ["LOG_AGENT_TOKEN"]) as agent:
        work: list[Any] = [flood(agent.log(await agent.job("flood"))), tick(agent.log(await agent.job("ticks")))]
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(main())
