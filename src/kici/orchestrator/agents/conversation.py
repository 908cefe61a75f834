"""One agent's socket after its hello: always read, every frame answered once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial

import structlog
from asyncpg import Pool, Record

from kici.engine.lifecycle import TERMINAL_JOB
from kici.orchestrator.agents.contract import Logs, OwnLease, Statuses
from kici.orchestrator.agents.link import Closing, SocketLink
from kici.orchestrator.agents.log_windows import LogWindows
from kici.orchestrator.agents.roster import Agent, Roster
from kici.orchestrator.errors import LeaseLost, Unavailable
from kici.orchestrator.lifecycle import agent_sessions
from kici.orchestrator.lifecycle.frames import Answer, Refused, StatusFrame, Superseded
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.store import sessions, storable
from kici.orchestrator.store.database import is_away, is_transient, transaction
from kici.wire.agent import (
    AgentFrame,
    Goodbye,
    Heartbeat,
    Hello,
    JobAccepted,
    JobRejected,
    JobStatusChanged,
    LogChunk,
    StepStatusChanged,
    unpack_agent,
)
from kici.wire.close_codes import CloseCode

log = structlog.get_logger(__name__)

MAX_UNANSWERED_BYTES = 32 * 1024 * 1024
"""Of frames that are read and not yet answered. Agents keep far below: this bounds what a broken one can take."""
GOODBYE_S = 5.0
"""For what an agent said before its goodbye to be committed."""
MAX_WHY_CHARS = 1_000
"""Of an agent's own words about why it takes no job."""
LOG_PAUSE_S = 0.2
"""Between two tries to store a chunk while the database is away."""


class Parts:
    """What conversations share."""

    def __init__(
        self,
        pool: Pool[Record],
        roster: Roster,
        lease: OwnLease,
        statuses: Statuses,
        logs: Logs,
        notifier: Notifies,
        limits: Limits,
        *,
        instance: str,
        log_windows: LogWindows | None = None,
    ) -> None:
        self.pool = pool
        self.roster = roster
        self.lease = lease
        self.statuses = statuses
        self.logs = logs
        self.notifier = notifier
        self.limits = limits
        self.instance = instance
        self.log_windows = log_windows or LogWindows()


class Conversation:
    """`serve` returns when the agent has said goodbye; it raises `Closing`, or whatever ended the socket."""

    def __init__(
        self,
        agent: Agent,
        parts: Parts,
        *,
        receive: Callable[[], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._agent = agent
        self._parts = parts
        self._receive = receive
        self._unanswered_bytes = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._beat = asyncio.Event()
        self._heartbeat = Heartbeat(0)
        self._draining = agent.draining
        self._link = SocketLink(send, may_acknowledge=self._may_acknowledge, on_acknowledged=self._on_acknowledged)

    async def serve(self) -> None:
        self._parts.roster.connect(self._agent, self._link)
        try:
            with self._parts.log_windows.open(self._agent.slots, self._link.send):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(group))
                    group.create_task(self._link.run())
                    group.create_task(self._answer_heartbeats())
        finally:
            self._agent.link = None

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, group: asyncio.TaskGroup) -> None:
        while True:
            data = await self._receive()
            self._agent.heard_at = self._parts.roster.clock()
            frames = unpack_agent(data)
            size = max(1, len(data) // max(1, len(frames)))
            for frame in frames:
                await self._hear(group, frame, size)

    async def _hear(self, group: asyncio.TaskGroup, frame: AgentFrame, size: int) -> None:
        match frame.body:
            case Heartbeat():
                self._heartbeat = frame.body
                self._beat.set()
            case JobAccepted() | JobRejected() | StepStatusChanged() | JobStatusChanged():
                self._note(frame.body)
                self._count_unanswered(size)
                self._parts.statuses.put(
                    self._agent.ref, frame.body, partial(self._on_status, frame.seq, frame.body, size)
                )
            case LogChunk():
                self._answer(group, self._log(frame.seq, frame.body), size)
            case Goodbye(reason):
                await self._leave(reason)
            case Hello():
                raise Closing(CloseCode.INVALID_MESSAGE, "a second hello on the same socket")

    def _answer(self, group: asyncio.TaskGroup, answering: Coroutine[None, None, None], size: int) -> None:
        """Beside the reading."""
        group.create_task(answering).add_done_callback(lambda _: self._answered(size))
        self._count_unanswered(size)

    def _count_unanswered(self, size: int) -> None:
        self._unanswered_bytes += size
        self._all_answered.clear()
        if self._unanswered_bytes > MAX_UNANSWERED_BYTES:
            raise Closing(CloseCode.INVALID_MESSAGE, "more unanswered frames than the windows allow")

    def _answered(self, size: int) -> None:
        self._unanswered_bytes -= size
        if not self._unanswered_bytes:
            self._all_answered.set()

    def _note(self, frame: StatusFrame) -> None:
        """Before anything is committed: the agent has answered, it is not to blame if the database is slow."""
        if isinstance(frame, JobAccepted | JobRejected):
            held = self._agent.held.get(frame.job_id)
            if held is not None and held.attempt == frame.attempt:
                held.answered = True
        if isinstance(frame, JobRejected):
            self._parts.roster.rest(self._agent)

    def _on_status(self, seq: int, frame: StatusFrame, size: int, answer: Answer) -> None:
        """After the commit; perhaps after the socket's end, when the agent sends the frame again over another."""
        self._answered(size)
        if isinstance(answer, Superseded):
            self._link.close(CloseCode.SUPERSEDED, "a newer socket of this agent took over")
            return
        if isinstance(answer, Refused):
            log.info("refused a message", agent=self._agent.agent_id, job=frame.job_id, reason=answer.reason)
            self._link.acknowledge(seq, answer.reason)
        else:
            self._link.acknowledge(seq)
        over = isinstance(frame, JobRejected) or (isinstance(frame, JobStatusChanged) and frame.status in TERMINAL_JOB)
        if over or (isinstance(answer, Refused) and isinstance(frame, JobAccepted)):
            self._parts.roster.release(self._agent.session_id, frame.job_id, frame.attempt)

    async def _log(self, seq: int, chunk: LogChunk) -> None:
        while True:
            try:
                reason = await self._parts.logs.append(self._agent.session_id, chunk)
            except Exception as error:
                if not (isinstance(error, Unavailable) or is_away(error) or is_transient(error)):
                    log.exception("a log chunk could not be stored", agent=self._agent.agent_id, job=chunk.job_id)
                    reason = f"it could not be stored: {type(error).__name__}"
                else:
                    await asyncio.sleep(LOG_PAUSE_S)
                    continue
            break
        self._link.acknowledge(seq, reason or "")

    async def _leave(self, reason: str) -> None:
        log.info("agent left", agent=self._agent.agent_id, session=self._agent.session_id, reason=reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._all_answered.wait()
        async with transaction(self._parts.pool) as db:
            await sessions.hold_lease(db, self._parts.instance)
            wakes = await agent_sessions.leave(db, self._parts.limits, self._agent.session_id)
        if wakes is not None:
            wakes.send(self._parts.notifier)
        self._parts.roster.remove(self._agent.session_id)
        raise Closing(CloseCode.NORMAL, "goodbye")

    # ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer_heartbeats(self) -> None:
        """No database write, unless something has changed: after a silence or a gap of the lease the session must be
        seen to be open first, or an agent would run on whose job is being given away."""
        while True:
            await self._beat.wait()
            self._beat.clear()
            heartbeat = self._heartbeat
            if not self._parts.lease.valid():
                continue
            try:
                if self._is_doubtful():
                    await self._regain()
                if heartbeat.draining != self._draining:
                    await self._set_draining(heartbeat.draining)
                if heartbeat.not_taking != self._agent.not_taking:
                    await self._set_not_taking(heartbeat.not_taking)
            except (Unavailable, LeaseLost) as error:
                log.info("a heartbeat waits for the database", agent=self._agent.agent_id, reason=str(error))
                continue
            self._link.acknowledge_heartbeat(heartbeat.number)

    def _is_doubtful(self) -> bool:
        return self._agent.lost or self._agent.lease_since != self._parts.lease.since

    async def _regain(self) -> None:
        since = self._parts.lease.since
        async with transaction(self._parts.pool) as db:
            await sessions.hold_lease(db, self._parts.instance)
            wakes = await agent_sessions.be_heard(db, self._parts.limits, self._agent.session_id)
        if wakes is None:
            raise Closing(CloseCode.SUPERSEDED, "this session is over: say hello again")
        self._agent.lost = False
        self._agent.lease_since = since
        wakes.send(self._parts.notifier)
        self._parts.roster.on_free()

    async def _set_draining(self, draining: bool) -> None:
        async with transaction(self._parts.pool) as db:
            await sessions.set_draining(db, self._agent.session_id, draining)
        self._draining = self._agent.draining = draining
        self._parts.roster.on_free()

    async def _set_not_taking(self, why: str) -> None:
        async with transaction(self._parts.pool) as db:
            await sessions.set_not_taking(db, self._agent.session_id, storable.text(why[:MAX_WHY_CHARS]))
        self._agent.not_taking = why
        self._parts.roster.on_free()

    def _may_acknowledge(self) -> bool:
        return self._parts.lease.valid() and not self._is_doubtful()

    def _on_acknowledged(self) -> None:
        self._agent.known_at = self._parts.roster.clock()
