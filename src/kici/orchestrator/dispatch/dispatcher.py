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
from prometheus_client import Counter, Histogram

from kici.engine.lifecycle import JobEvent
from kici.errors import KiciError
from kici.orchestrator.dispatch import open_lanes, orders
from kici.orchestrator.dispatch.contract import Agents, CloneLogins, Hears, Login
from kici.orchestrator.dispatch.open_lanes import OpenLanes
from kici.orchestrator.dispatch.shares import Wish
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked, lock_jobs
from kici.orchestrator.lifecycle.requeue import give_back
from kici.orchestrator.lifecycle.wakes import Notifies
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import jobs, lanes, notify
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.lanes import Claimed, Want

log = structlog.get_logger(__name__)

DISPATCHED = Counter("kici_dispatches_total", "Jobs that were sent to agents")
GIVEN_BACK = Counter("kici_dispatches_given_back_total", "Claims that could not be sent")
CLAIM_LATENCY = Histogram(
    "kici_claim_latency_seconds",
    "From the moment when a job may be claimed to its claim",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 900, 3600),
)
CLAIMS_PER_PASS = Histogram(
    "kici_claims_per_pass", "Jobs that one pass claimed", buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
)


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=5)
    """Safety net beside the notifications."""
    default_cap: int | None = None
    """How many jobs a repository that has no cap of its own may run at once; None = any number."""


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
        self._default_cap = settings.default_cap
        self._lanes = OpenLanes(open_lanes.Settings(settings.interval, settings.default_cap))
        self._timer: asyncio.TimerHandle | None = None
        self._pace = Pace(settings.interval)
        agents.on_free = self._pace.wake
        listener.subscribe(notify.QUEUE, self._hear)

    async def run(self) -> None:
        async for pace in self._pace:
            try:
                done = await self.run_once()
            except Unavailable as error:
                log.info("nothing is dispatched while the database is away", reason=str(error))
                continue
            if done.wished:
                pace.wake()
            self._on_pass(done)

    def _hear(self, keys: set[str]) -> None:
        self._lanes.heard(keys)
        self._pace.wake()

    async def run_once(self) -> Pass:
        """One claim for all idle agents, and the sending of what it gave."""
        idle = self._agents.idle()
        if not idle:
            return Pass(0, 0, 0)
        if self._lanes.must_look(idle):
            async with transaction(self._pool) as db:
                await self._lanes.look(db, idle)
        wishes = self._lanes.wishes(idle, self._agents.offered())
        if not wishes:
            self._wake_later()
            return Pass(0, 0, 0)
        tokens = [f"kjt_{secrets.token_hex(32)}" for _ in wishes]
        by_hash = {hashlib.sha256(token.encode()).hexdigest(): token for token in tokens}
        async with transaction(self._pool) as db:
            claims = await self._claim(db, wishes, list(by_hash))
            details = await jobs.orders(db, [claim.job_id for claim in claims]) if claims else {}
        self._lanes.note(wishes, claims)
        CLAIMS_PER_PASS.observe(len(claims))
        for claim in claims:
            CLAIM_LATENCY.observe(max(claim.waited_s, 0.0))
        return Pass(len(wishes), len(claims), await self._send(claims, details, by_hash))

    async def _claim(self, db: Db, wishes: Sequence[Wish], hashes: Sequence[str]) -> list[Claimed]:
        capped = self._lanes.capped(wishes)
        if capped:
            await lanes.lock_caps(db, capped)
        wants = [
            Want(wish.lane, wish.session_id, hashed, self._lanes.bound(wish.lane))
            for wish, hashed in zip(wishes, hashes, strict=True)
        ]
        return await lanes.claim(
            db, self._instance, wants, self._limits.ack_timeout_s, capped=capped, default_cap=self._default_cap
        )

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._lanes.again_in_s(), self._pace.wake)

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
            await give_back(db, locked, dict.fromkeys(mine, "it could not be sent to the agent"))
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
