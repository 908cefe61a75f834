"""`python -m tests.chaos.agent`: the real agent's connection, outbox and silence around work that is only played.

One process is one agent, so that a kill -9 takes it whole. It knows the addresses of all coordinators and dials any of
them, as through a load balancer. It ends when its standard input does: nothing outlives the chaos.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
import zstandard

from kici.agent.connection import Connection
from kici.agent.errors import TurnedAway
from kici.agent.outbox import Outbox
from kici.agent.silence import Silence
from kici.wire.agent import (
    AttemptRef,
    Cancel,
    Dispatch,
    Heartbeat,
    Hello,
    JobAccepted,
    JobRejected,
    JobStatusChanged,
    LogChunk,
    StepStatusChanged,
    Welcome,
)
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN
from tests.chaos.journal import Journal
from tests.chaos.work import log_of

log = structlog.get_logger(__name__)

WELCOME_S = 3.0
"""For a dial, from the first packet to the welcome."""

LONG_SHARE = 0.04


class Orders(msgspec.Struct, frozen=True):
    """One line of JSON on standard input."""

    urls: list[str]
    token: str
    agent_id: str
    slots: int
    journal: str
    work_s: tuple[float, float] = (0.05, 0.6)
    """How long user code of an attempt takes."""
    long_s: tuple[float, float] = (5.0, 9.0)
    """And of one attempt in 25, which an outage can outlast."""

    def __repr__(self) -> str:
        return f"Orders(agent_id={self.agent_id!r})"


class AnyOf(Connection):
    """Each dial goes to any coordinator. Pauses stay short, so that there is something left to kill."""

    def __init__(self, urls: Sequence[str], agent: Agent) -> None:
        super().__init__(urls[0], agent, agent.outbox, agent.silence)
        self._urls = urls

    async def run(self) -> None:
        """Raises `TurnedAway`."""
        while True:
            self._url = random.choice(self._urls)
            try:
                async with asyncio.timeout(WELCOME_S) as patience:
                    self._on_connected = partial(patience.reschedule, None)
                    await self._one()
            except TurnedAway:
                raise
            except Exception as error:  # noqa: BLE001 - whatever ends a socket here, the next one is dialled
                log.info("a socket ended", url=self._url, reason=repr(error))
            await asyncio.sleep(random.uniform(0.05, 0.3))


class Agent:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.silence = Silence()
        self.outbox = Outbox(self.silence.clock)
        self.boot_id = secrets.token_hex(8)
        self._journal = Journal(Path(orders.journal))
        self._tasks: dict[AttemptRef, asyncio.Task[None]] = {}
        """Accepted, and the end not yet acknowledged."""
        self._latest: dict[str, int] = {}
        self._stops: dict[AttemptRef, str] = {}
        self._working: set[AttemptRef] = set()

    # ── what the connection asks ──────────────────────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        return Hello(
            agent_id=self.orders.agent_id,
            boot_id=self.boot_id,
            token=self.orders.token,
            version="0.0-chaos",
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            labels=("kici:os:linux",),
            slots=self.orders.slots,
            clock_ms=int(time.time() * 1000),
            attempts=tuple(self._tasks),
        )

    def heartbeat(self, number: int) -> Heartbeat:
        return Heartbeat(number, attempts=tuple(self._working))

    def welcomed(self, welcome: Welcome) -> None:
        for ref in welcome.forget:
            self._stop(ref, "withdrawn")

    def cancelled(self, cancel: Cancel) -> None:
        self._stop(AttemptRef(cancel.job_id, cancel.attempt), "withdrawn" if cancel.force else "cancel")

    def dispatched(self, dispatch: Dispatch) -> None:
        ref = AttemptRef(dispatch.job_id, dispatch.attempt)
        if dispatch.attempt <= self._latest.get(dispatch.job_id, -1):
            return
        for older in [other for other in self._tasks if other.job_id == ref.job_id]:
            self._stop(older, "withdrawn")
        if len(self._tasks) >= self.orders.slots:
            self.outbox.put(JobRejected(ref.job_id, ref.attempt, "busy"))
            return
        self._latest[dispatch.job_id] = dispatch.attempt
        task = self._tasks[ref] = asyncio.create_task(self._see_through(ref, dispatch))
        task.add_done_callback(lambda _: self._forget(ref))

    # ── one attempt ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _see_through(self, ref: AttemptRef, dispatch: Dispatch) -> None:
        try:
            accepted = self.outbox.put(JobAccepted(ref.job_id, ref.attempt))
            if await accepted.outcome is not None:
                return
            limit = dispatch.kill_after_silence_s
            if limit is not None and self.silence.left(limit, accepted.sent_at) <= 0:
                self.outbox.withdraw(ref)
                return
            self._tell_step(ref, "running")
            if not await self._run(ref, limit, accepted.sent_at):
                self.outbox.withdraw(ref)
                return
            chunks = log_of(ref.job_id, ref.attempt)
            self._tell_step(ref, "success", exit_code=0, log_chunks=len(chunks))
            ended = JobStatusChanged(ref.job_id, ref.attempt, "success", _now_ms(), outputs={"run": ref.attempt})
            await self.outbox.put(ended).outcome
        except asyncio.CancelledError:
            self.outbox.withdraw(ref)

    async def _run(self, ref: AttemptRef, limit: float | None, accepted_at: float) -> bool:
        """Play user code. False: it was ended by the orchestrator's silence."""
        self._journal.begin(ref.job_id, ref.attempt)
        self._working.add(ref)
        try:
            async with asyncio.TaskGroup() as group:
                code = group.create_task(self._user_code(ref))
                watch = group.create_task(self._watch(code, limit, accepted_at))
                await asyncio.wait([code])
                watch.cancel()
        except asyncio.CancelledError:
            self._journal.killed(ref.job_id, ref.attempt, self._stops.get(ref, "stop"))
            raise
        finally:
            self._working.discard(ref)
        if code.cancelled():
            self._journal.killed(ref.job_id, ref.attempt, "silence")
            return False
        self._journal.end(ref.job_id, ref.attempt)
        return True

    async def _watch(self, code: asyncio.Task[None], limit: float | None, accepted_at: float) -> None:
        if limit is not None:
            await self.silence.exceeds(limit, accepted_at)
            code.cancel()

    async def _user_code(self, ref: AttemptRef) -> None:
        chunks = log_of(ref.job_id, ref.attempt)
        took_s = self.orders.long_s if random.random() < LONG_SHARE else self.orders.work_s
        pause = random.uniform(*took_s) / len(chunks)
        for sequence, chunk in enumerate(chunks):
            text = "".join(f"{line}\n" for line in chunk.lines)
            data = zstandard.ZstdCompressor().compress(text.encode())
            self.outbox.put_log(
                LogChunk(ref.job_id, ref.attempt, 0, sequence, chunk.first_line, len(chunk.lines), data)
            )
            await asyncio.sleep(pause)

    def _tell_step(self, ref: AttemptRef, status: str, *, exit_code: int | None = None, log_chunks: int = 0) -> None:
        self.outbox.put(
            StepStatusChanged(
                job_id=ref.job_id,
                attempt=ref.attempt,
                step_index=0,
                name="run",
                status=status,
                at_ms=_now_ms(),
                exit_code=exit_code,
                log_chunks=log_chunks,
            )
        )

    def _stop(self, ref: AttemptRef, why: str) -> None:
        task = self._tasks.get(ref)
        if task is not None:
            self._stops[ref] = why
            task.cancel()

    def _forget(self, ref: AttemptRef) -> None:
        self._tasks.pop(ref, None)
        self._stops.pop(ref, None)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def main() -> None:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    agent = Agent(msgspec.json.decode(await stdin.readline(), type=Orders))
    life = asyncio.create_task(AnyOf(agent.orders.urls, agent).run())
    await asyncio.wait([life, asyncio.create_task(stdin.read())], return_when=asyncio.FIRST_COMPLETED)
    if life.done():
        print(f"{agent.orders.agent_id}: {life.exception()!r}", file=sys.stderr, flush=True)
    os._exit(life.done())  # as suddenly as a kill: what it held is settled by the orchestrator


if __name__ == "__main__":
    asyncio.run(main())
