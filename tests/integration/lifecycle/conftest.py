from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from asyncpg import Pool, Record

from kici.engine.lockfile import LockJob
from kici.orchestrator.lifecycle.cancel import CancelResult, cancel_run
from kici.orchestrator.lifecycle.frames import Answer, Refused, SessionRef, StatusFrame
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.store import lanes, sessions
from kici.orchestrator.store.lanes import Want
from kici.orchestrator.store.sessions import NewSession
from kici.wire.agent import JobAccepted, JobStatusChanged, StepStatusChanged
from tests.support.runs import Made, make_run
from tests.support.told import Told

HERE = "coordinator-a"


class Rig:
    """Plays dispatch and agents towards the real rules on the real database."""

    def __init__(self, pool: Pool[Record], told: Told) -> None:
        self.pool = pool
        self.told = told
        self.limits = Limits()
        self.writer = self.new_writer()
        self.sessions: dict[str, SessionRef] = {}

    def new_writer(self) -> StatusWriter:
        return StatusWriter(self.pool, self.told, self.limits, hold=lambda db: sessions.hold_lease(db, HERE))

    async def make(self, *jobs: LockJob, **options: Any) -> Made:
        return await make_run(self.pool, jobs, **options)

    async def session(self, agent_id: str = "agent-1", coordinator: str = HERE) -> SessionRef:
        new = NewSession(
            id=str(uuid.uuid4()),
            agent_id=agent_id,
            boot_id="b",
            token_id=None,
            coordinator=coordinator,
            protocol=1,
            version="test",
            labels=("kici:os:linux",),
            slots=100,
        )
        async with self.pool.acquire() as db, db.transaction():
            await sessions.insert(db, new)
        self.sessions[agent_id] = SessionRef(new.id, agent_id)
        return self.sessions[agent_id]

    async def claim(self, agent_id: str = "agent-1") -> dict[str, int]:
        """Everything that is due goes to the agent: job → attempt."""
        session = self.sessions.get(agent_id) or await self.session(agent_id)
        async with self.pool.acquire() as db, db.transaction():
            found = await lanes.every_open_lane(db)
            wants = [Want(lane, session.id, uuid.uuid4().hex) for lane in found for _ in range(100)]
            return {one.job_id: one.attempt for one in await lanes.claim(db, HERE, wants, 10)}

    async def begin(self, made: Made, *names: str, agent_id: str = "agent-1") -> None:
        """Claimed and accepted; of everything that is due, if no names are given."""
        for job_id, attempt in (await self.claim(agent_id)).items():
            if not names or job_id in {made[name] for name in names}:
                assert await self.say(JobAccepted(job_id, attempt), agent_id=agent_id) == ""

    async def say(self, frame: StatusFrame, *, agent_id: str = "agent-1", session: SessionRef | None = None) -> str:
        """Empty = taken, else the refusal."""
        answer = await self.answer(frame, agent_id=agent_id, session=session)
        return answer.reason if isinstance(answer, Refused) else ""

    async def answer(
        self, frame: StatusFrame, *, agent_id: str = "agent-1", session: SessionRef | None = None
    ) -> Answer:
        async with asyncio.timeout(10):
            return await self.writer.submit(session or self.sessions[agent_id], frame)

    async def end(self, job_id: str, status: str = "success", attempt: int = 1, **more: Any) -> str:
        agent_id = more.pop("agent_id", "agent-1")
        return await self.say(JobStatusChanged(job_id, attempt, status, now_ms(), **more), agent_id=agent_id)

    async def step(self, job_id: str, status: str, index: int = 0, attempt: int = 1, **more: Any) -> str:
        return await self.say(step(job_id, status, index, attempt, **more))

    async def cancel(self, made: Made, *, force: bool = False) -> CancelResult:
        async with self.pool.acquire() as db, db.transaction():
            return await cancel_run(db, made.run_id, by="me", reason="enough", force=force)


def now_ms() -> int:
    return int(time.time() * 1000)


def step(job_id: str, status: str, index: int = 0, attempt: int = 1, **more: Any) -> StepStatusChanged:
    return StepStatusChanged(job_id, attempt, index, "run", status, more.pop("at_ms", now_ms()), **more)


@pytest.fixture
async def rig(pool: Pool[Record]) -> AsyncIterator[Rig]:
    await pool.execute(
        "insert into coordinators (instance, lease_expires_at, version) values ($1, now() + interval '1 hour', 't')",
        HERE,
    )
    rig = Rig(pool, Told())
    service = asyncio.create_task(rig.writer.run())
    try:
        yield rig
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service
