"""One life of a coordinator: the real services on the real database, behind a socket, until somebody kills it.

Every request is a task of its own, so the rules, the group commits and the claims run side by side. A request is
answered after its transaction has committed; what a kill leaves unanswered may be stored or not.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.engine.lockfile import SCHEMA_VERSION, LockFile
from kici.engine.triggers import Decision
from kici.forges.git.remote import Remote
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.dispatch.dispatcher import Dispatcher
from kici.orchestrator.dispatch.dispatcher import Settings as DispatchSettings
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.errors import Conflict, LeaseLost, NotFound, Unavailable
from kici.orchestrator.intake.event_writer import EventWriter
from kici.orchestrator.lifecycle import agent_sessions, frames
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.lifecycle.frames import SessionRef
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.new_run import settle_new_runs
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.maintenance import repair_concurrency, sweeper
from kici.orchestrator.maintenance.cancel_overdue_runs import CancelOverdueRuns
from kici.orchestrator.maintenance.end_stale_waits import EndStaleWaits
from kici.orchestrator.maintenance.lose_sessions import LoseSessions
from kici.orchestrator.maintenance.repair_concurrency import RepairConcurrency
from kici.orchestrator.maintenance.requeue_unacknowledged import RequeueUnacknowledged
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.maintenance.stop_overdue_jobs import StopOverdueJobs
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.pipeline import commit, new_runs, rerun, results
from kici.orchestrator.pipeline.lock_files import Found, LockAnswer
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.results import Planned
from kici.orchestrator.pipeline.subjects import Subject
from kici.orchestrator.store import coordinators, event_claims, events, jobs, lease, notify, sessions
from kici.orchestrator.store.database import Db, create_pool
from kici.orchestrator.store.event_claims import Claim, ClaimLost
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.sessions import NewSession
from kici.wire import agent as wire
from tests.integration.model import messages
from tests.integration.model.messages import LENGTH, Answer, Body, Request, Response

ROUTING_KEY = "internal:local"
LOCK_SHA256 = "b" * 64
TTL = timedelta(hours=1)
"""Of every lease: the test moves their ends into the past when it wants them to lapse."""
SERVICES: dict[str, Callable[..., Sweeper[Any]]] = {
    "cancel_overdue_runs": CancelOverdueRuns,
    "end_stale_waits": EndStaleWaits,
    "lose_sessions": LoseSessions,
    "repair_concurrency": RepairConcurrency,
    "requeue_unacknowledged": RequeueUnacknowledged,
    "settle_overdue": SettleOverdue,
    "stop_overdue_jobs": StopOverdueJobs,
}
# The server of the test is younger than any real lease: for a coordinator of this test an outage is over at once.
SWEEPING = sweeper.Settings(lease=timedelta(milliseconds=1))


class Birth(Struct, frozen=True):
    database_url: str
    instance: str
    max_attempts: int


def live(socket: socket.socket, birth: bytes) -> None:
    """Serve until the other end of the socket is closed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    asyncio.run(Life(socket, msgspec.msgpack.decode(birth, type=Birth)).run())


class _Hearing:
    """A coordinator hears its own wake-ups, and those of others when the test says so."""

    def __init__(self) -> None:
        self._callbacks: defaultdict[str, list[Callable[[set[str]], None]]] = defaultdict(list)

    def send(self, channel: str, key: str = "") -> None:
        for callback in self._callbacks[channel]:
            callback({key})

    def subscribe(self, channel: str, callback: Callable[[set[str]], None]) -> None:
        self._callbacks[channel].append(callback)


class _Repositories:
    """A commit's lock file has the workflow of the delivery that told of it."""

    def __init__(self, pool: Pool[Record]) -> None:
        self._pool = pool

    async def at(self, remote: Remote, sha: str) -> LockAnswer:
        body = await self._pool.fetchval(
            """
            select p.body from execution_runs r join event_payloads p on p.event_id = r.event_id
             where r.workflow_sha = $1 and r.parent_run_id is null
            """,
            sha,
        )
        workflow = msgspec.json.decode(body, type=messages.Delivered).workflow
        return Found(LockFile(SCHEMA_VERSION, "0" * 64, {}, (workflow,)), LOCK_SHA256, size=len(body))


class _Idle(Struct, frozen=True):
    session_id: str
    labels: frozenset[str]
    free: int


class _Agents:
    """The agents whose sockets this coordinator has, as dispatch sees them."""

    def __init__(self) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.labels: dict[str, frozenset[str]] = {}
        self.offer: messages.Dispatch = messages.Dispatch({})
        self.sent: list[messages.Sent] = []

    def idle(self) -> list[_Idle]:
        offered = self.offer.free.items()
        return [_Idle(session_id, self.labels[session_id], free) for session_id, free in offered if free > 0]

    def offered(self) -> list[frozenset[str]]:
        return list(self.labels.values())

    def hold(self, session_id: str, job_id: str, attempt: int) -> bool:
        return session_id in self.labels

    def send(self, session_id: str, job_id: str, attempt: int, dispatch: bytes) -> bool:
        if session_id in self.offer.gone:
            return False
        body = wire.orchestrator_frames.decode(dispatch).body
        assert isinstance(body, wire.Dispatch)
        assert (body.job_id, body.attempt) == (job_id, attempt)
        kills = body.kill_after_silence_s is not None
        self.sent.append(messages.Sent(session_id, job_id, body.run_id, attempt, body.name, kills))
        return True

    def release(self, session_id: str, job_id: str, attempt: int) -> None:
        pass


class Life:
    def __init__(self, socket: socket.socket, birth: Birth) -> None:
        self._socket = socket
        self._birth = birth
        self._instance = birth.instance
        self._limits = Limits(max_attempts=birth.max_attempts)
        self._hearing = _Hearing()
        self._agents = _Agents()
        self._dispatching = asyncio.Lock()
        self._telling: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)

    async def run(self) -> None:
        reader, self._out = await asyncio.open_unix_connection(sock=self._socket, limit=4_194_304)
        self._pool = await create_pool(self._birth.database_url, 3)
        try:
            self._statuses = StatusWriter(
                self._pool, self._hearing, self._limits, hold=lambda db: sessions.hold_lease(db, self._instance)
            )
            self._events = EventWriter(self._pool)
            self._parts: Any = SimpleNamespace(pool=self._pool, lock_files=_Repositories(self._pool), sources=None)
            self._runs = commit.Writer(self._pool, partial(settle_new_runs, limits=self._limits))
            self._dispatcher = Dispatcher(
                self._pool,
                self._agents,
                self._login,
                self._hearing,
                self._hearing,
                self._limits,
                Place(),
                DispatchSettings(),
                instance=self._instance,
            )
            async with asyncio.TaskGroup() as group:
                services = [group.create_task(self._statuses.run()), group.create_task(self._events.run())]
                await self._renew_lease()
                self._answer(0, messages.Ready(self._instance))
                await self._serve(reader, group)
                for service in services:
                    service.cancel()
        finally:
            self._pool.terminate()

    async def _serve(self, reader: asyncio.StreamReader, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                asked = messages.request(await reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return
            task = group.create_task(self._handle(asked))
            if isinstance(asked.body, messages.Tell):
                session_id = asked.body.session_id
                self._telling[session_id].add(task)
                task.add_done_callback(self._telling[session_id].discard)

    async def _handle(self, asked: Request) -> None:
        try:
            answer = await self._do(asked.body)
        except (LeaseLost, Unavailable, Conflict, NotFound) as error:
            answer = messages.Unable(str(error))
        except asyncio.CancelledError:
            self._answer(asked.number, messages.Unable("the socket is gone"))
            return
        except Exception:  # noqa: BLE001 - the test shows it
            answer = messages.Broken(traceback.format_exc())
        self._answer(asked.number, answer)

    def _answer(self, number: int, answer: Answer) -> None:
        self._out.write(messages.packed(Response(number, answer)))

    async def _do(self, body: Body) -> Answer:
        match body:
            case messages.TakeIn():
                return messages.TakenIn(await self._take_in(body))
            case messages.WorkEvents():
                await self._work_events()
            case messages.Hello():
                return await self._hello(body)
            case messages.Tell(session_id, agent_id, frame):
                return _told(await self._statuses.submit(SessionRef(session_id, agent_id), frame))
            case messages.Cut(session_id):
                for task in list(self._telling[session_id]):
                    task.cancel()
            case messages.FallSilent(session_id):
                await self._session(partial(agent_sessions.fall_silent, session_id=session_id, heard_s=20.0))
            case messages.BeHeard(session_id):
                return await self._session(partial(agent_sessions.be_heard, session_id=session_id))
            case messages.Leave(session_id):
                await self._session(partial(agent_sessions.leave, session_id=session_id))
            case messages.Dispatch():
                return await self._dispatch(body)
            case messages.AskStops(session_ids):
                async with self._transaction() as db:
                    found = await jobs.to_stop(db, session_ids)
                return messages.Stops(
                    tuple(messages.Stop(one.session_id, one.job_id, one.attempt, one.force) for one in found)
                )
            case messages.CancelRun(run_id, force):
                async with self._transaction() as db:
                    await cancel_run(db, run_id, by="test", reason="enough", force=force, limits=self._limits)
            case messages.RenewLease():
                await self._renew_lease()
            case messages.Sweep(service):
                return await self._sweep(service)
        return messages.Done()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Db]:
        async with self._pool.acquire() as db, db.transaction():
            yield db

    async def _renew_lease(self) -> None:
        async with self._pool.acquire() as db:
            await coordinators.renew(db, self._instance, TTL, version="model", url="")

    async def _login(self, routing_key: str, clone_url: str) -> Login:
        return Login()

    # ── events and runs ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_in(self, asked: messages.TakeIn) -> bool:
        return await self._events.submit(
            NewEvent(
                id=events.new_id(),
                delivery_id=asked.delivery_id,
                routing_key=ROUTING_KEY,
                event="push",
                action="",
                provider=asked.provider,
                headers={},
                repo="",
                ref="",
                content_type="application/json",
                size=len(asked.body),
                sha256="c" * 64,
                body=asked.body,
            )
        )

    async def _work_events(self) -> None:
        async with self._pool.acquire() as db:
            claims = await event_claims.claim(db, self._instance, timedelta(hours=1), 8)
        for claim in claims:
            try:
                await self._runs.write(claim, await self._planned(claim))
            except ClaimLost:
                continue

    async def _planned(self, claim: Claim) -> results.Result:
        if claim.provider == rerun.PROVIDER:
            return await rerun.handle(self._parts, claim)
        assert claim.body is not None
        delivered = msgspec.json.decode(claim.body, type=messages.Delivered)
        workflow, event = delivered.workflow, delivered.event
        run, planned = new_runs.build(
            claim,
            Subject(
                event=event, clone_url=f"/git/{event.repo}", provider=claim.provider, routing_key=claim.routing_key
            ),
            workflow,
            Decision(workflow.name, matched=True, summary="push"),
            LockPlace(event.sha, LOCK_SHA256),
        )
        return results.with_runs(results.ends("processed", repo=event.repo, ref=event.ref), [Planned(run, planned)])

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hello(self, hello: messages.Hello) -> Answer:
        new = NewSession(
            id=str(uuid.uuid4()),
            agent_id=hello.agent_id,
            boot_id=hello.boot_id,
            token_id=None,
            coordinator=self._instance,
            protocol=1,
            version="model",
            labels=hello.labels,
            slots=8,
        )
        async with self._transaction() as db:
            await sessions.hold_lease(db, self._instance)
            # Agents of one name are told apart by their tokens; without one everybody takes over from everybody.
            adopted = await agent_sessions.arrive(db, self._limits, new, hello.attempts)
        if isinstance(adopted, agent_sessions.Foreign):
            return messages.Broken("an agent was told that its name belongs to somebody else")
        self._agents.labels[new.id] = frozenset(hello.labels)
        return messages.Adopted(new.id, adopted.kept, adopted.forget)

    async def _session(self, rule: Callable[..., object]) -> Answer:
        async with self._transaction() as db:
            await sessions.hold_lease(db, self._instance)
            wakes = await rule(db, self._limits)  # type: ignore[misc]
        return messages.Done() if wakes is not None else messages.Unable("the session is over")

    async def _dispatch(self, offer: messages.Dispatch) -> Answer:
        async with self._dispatching:
            known = {one: free for one, free in offer.free.items() if one in self._agents.labels}
            self._agents.offer = messages.Dispatch(known, offer.gone)
            self._agents.sent = []
            if offer.woken:
                self._hearing.send(notify.QUEUE)
            await self._dispatcher.run_once()
            return messages.Dispatched(tuple(self._agents.sent))

    async def _sweep(self, name: str) -> Answer:
        async with self._pool.acquire() as db:
            held = await lease.acquire(db, "maintenance", self._instance, TTL)
        if held is None:
            return messages.Unable("somebody else leads")
        service = SERVICES[name](self._pool, held, self._hearing, self._limits, SWEEPING, instance=self._instance)
        done = await service.run_once()
        if isinstance(done, repair_concurrency.Pass) and done.ended + done.idle:
            return messages.Broken(f"a concurrency group had to be repaired: {done}")
        return messages.Done()


def _told(answer: frames.Answer) -> Answer:
    match answer:
        case frames.Refused(reason):
            return messages.Refused(reason)
        case frames.Superseded():
            return messages.Superseded()
    return messages.Taken()
