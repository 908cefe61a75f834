"""Claims jobs for the idle agents of this coordinator and sends them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct
from prometheus_client import Counter

from kici.engine.labels import Requirement
from kici.engine.lifecycle import JobEvent
from kici.errors import KiciError
from kici.orchestrator.dispatch import orders
from kici.orchestrator.dispatch.contract import Agents, CloneLogins, Hears, Login
from kici.orchestrator.dispatch.shares import share
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked, lock_jobs
from kici.orchestrator.lifecycle.requeue import give_back
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import jobs, notify, queue
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.queue import Claimed, Lane, Want

log = structlog.get_logger(__name__)

DISPATCHED = Counter("kici_dispatches_total", "Jobs that were sent to agents")
GIVEN_BACK = Counter("kici_dispatches_given_back_total", "Claims that could not be sent")


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=5)
    """Safety net beside the notifications."""


class Pass(Struct, frozen=True):
    wished: int
    claimed: int
    sent: int


class Dispatcher:
    def __init__(
        self,
        pool: Pool[Record],
        agents: Agents,
        logins: CloneLogins,
        listener: Hears,
        notifier: Notifies,
        limits: Limits,
        place: orders.Place,
        settings: Settings,
        *,
        instance: str,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._pool = pool
        self._agents = agents
        self._logins = logins
        self._notifier = notifier
        self._limits = limits
        self._place = place
        self._instance = instance
        self._on_pass = on_pass
        self._requirements: dict[int, Requirement] = {}
        """Label sets never change."""
        self._turn = 0
        self._pace = Pace(settings.interval)
        agents.on_free = self._pace.wake
        listener.subscribe(notify.QUEUE, lambda _: self._pace.wake())

    async def run(self) -> None:
        async for pace in self._pace:
            try:
                done = await self.run_once()
            except Unavailable as error:
                log.info("nothing is dispatched while the database is away", reason=str(error))
                continue
            if done.claimed:
                pace.wake()
            self._on_pass(done)

    async def run_once(self) -> Pass:
        """One claim for all idle agents, and the sending of what it gave."""
        idle = self._agents.idle()
        if not idle:
            return Pass(0, 0, 0)
        self._turn += 1
        async with transaction(self._pool) as db:
            lanes = await queue.open_lanes(db)
            await self._learn(db, lanes)
        wishes = share(lanes, self._requirements, idle, self._turn)
        if not wishes:
            return Pass(0, 0, 0)
        tokens = [f"kjt_{secrets.token_hex(32)}" for _ in wishes]
        by_hash = {hashlib.sha256(token.encode()).hexdigest(): token for token in tokens}
        wants = [Want(wish.lane, wish.session_id, hashed) for wish, hashed in zip(wishes, by_hash, strict=True)]
        async with transaction(self._pool) as db:
            claims = await queue.claim(db, self._instance, wants, self._limits.ack_timeout_s)
            details = await jobs.orders(db, [claim.job_id for claim in claims]) if claims else {}
            due = None if claims else await queue.next_due_s(db)
        if due is not None:
            asyncio.get_running_loop().call_later(max(due, 0.01), self._pace.wake)
        return Pass(len(wishes), len(claims), await self._send(claims, details, by_hash))

    async def _learn(self, db: Db, lanes: Sequence[Lane]) -> None:
        unknown = {lane.label_set_id for lane in lanes} - self._requirements.keys()
        if unknown:
            self._requirements |= {one.id: one.requirement for one in await queue.label_sets(db, unknown)}

    async def _send(
        self, claims: Sequence[Claimed], details: Mapping[str, jobs.Orders], tokens: Mapping[str, str]
    ) -> int:
        """Slots are taken before anything is awaited. A repository whose credentials take long holds up only itself."""
        if not claims:
            return 0
        back: list[Claimed] = []
        repositories: defaultdict[tuple[str, str], list[tuple[Claimed, jobs.Orders]]] = defaultdict(list)
        for claim in claims:
            job = details.get(claim.job_id)
            if not self._agents.hold(claim.session_id, claim.job_id, claim.attempt):
                back.append(claim)
            elif job is None:
                await self._fail(claim, "what is stored of the job cannot be read: see the orchestrator's log")
            else:
                repositories[job.routing_key, job.clone_url].append((claim, job))
        for unsent in await asyncio.gather(
            *(self._send_those_of(*repository, found, tokens) for repository, found in repositories.items())
        ):
            back += unsent
        if back:
            await self._give_back(back)
        sent = len(claims) - len(back)
        DISPATCHED.inc(sent)
        log.info("dispatched", jobs=sent, first=claims[0].job_id, run=claims[0].run_id)
        return sent

    async def _send_those_of(
        self,
        routing_key: str,
        clone_url: str,
        claims: Sequence[tuple[Claimed, jobs.Orders]],
        tokens: Mapping[str, str],
    ) -> list[Claimed]:
        """Returns the claims that are to go back."""
        all_of_them = [claim for claim, _ in claims]
        try:
            login = await self._logins(routing_key, clone_url)
        except Unavailable as error:
            log.warning("claims go back: no credentials for the clone", routing_key=routing_key, reason=str(error))
            return all_of_them
        except KiciError as error:
            for claim in all_of_them:
                await self._fail(claim, f"the credentials for its repository cannot be used: {error}")
            return []
        except Exception:
            log.exception("the credentials of a repository could not be asked for", routing_key=routing_key)
            return all_of_them
        return [claim for claim, job in claims if not self._send_one(claim, job, tokens[claim.token_hash], login)]

    def _send_one(self, claim: Claimed, job: jobs.Orders, token: str, login: Login) -> bool:
        """False: the claim is to go back."""
        try:
            frame = orders.dispatch(job, claim, token, login, limits=self._limits, place=self._place)
        except Exception:
            # One job's accident must not keep the others that were claimed with it from being sent.
            log.exception("a job could not be sent", job=claim.job_id, run=claim.run_id)
            return False
        log.debug("dispatched", job=claim.job_id, run=claim.run_id, attempt=claim.attempt, session=claim.session_id)
        return self._agents.send(claim.session_id, claim.job_id, claim.attempt, frame)

    async def _give_back(self, claims: Sequence[Claimed]) -> None:
        for claim in claims:
            self._agents.release(claim.session_id, claim.job_id, claim.attempt)
        async with transaction(self._pool) as db:
            locked = await lock_jobs(db, self._limits, [claim.job_id for claim in claims])
            mine = [claim.job_id for claim in claims if _is_still(locked, claim)]
            await give_back(db, locked, mine)
        locked.wakes.send(self._notifier)
        GIVEN_BACK.inc(len(mine))

    async def _fail(self, claim: Claimed, why: str) -> None:
        self._agents.release(claim.session_id, claim.job_id, claim.attempt)
        async with transaction(self._pool) as db:
            locked = await lock_jobs(db, self._limits, [claim.job_id])
            if _is_still(locked, claim):
                await end(db, locked, [End(claim.job_id, JobEvent.FAIL, error=why)])
        locked.wakes.send(self._notifier)


def _is_still(locked: Locked, claim: Claimed) -> bool:
    row = locked.queue.get(claim.job_id)
    return (
        row is not None
        and (row.attempt, row.session_id) == (claim.attempt, claim.session_id)
        and row.accepted_at is None
    )
