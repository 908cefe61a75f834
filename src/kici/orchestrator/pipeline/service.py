"""Claims events and works them off, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.errors import KiciError
from kici.forges.git.errors import BadRemote, GitError
from kici.orchestrator.pace import Pace
from kici.orchestrator.pipeline import metrics, results
from kici.orchestrator.pipeline.commit import Notifies, SettlesRuns, Writer
from kici.orchestrator.pipeline.emitted import MAX_PER_MINUTE
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.process import process
from kici.orchestrator.pipeline.results import Result
from kici.orchestrator.store import database, event_claims, notify
from kici.orchestrator.store.event_claims import Claim, ClaimLost

log = structlog.get_logger(__name__)

_STOP_S = 2.0
_LOOK_S = notify.INTERVAL_S
"""After a claim: whether another delivery is told of."""


class Settings(Struct, frozen=True):
    workers: int = 8
    """Events at a time."""
    attempts: int = 10
    per_minute: int = MAX_PER_MINUTE
    """Events of one workflow that may start runs."""
    lease: timedelta = timedelta(seconds=15)
    """How soon an event is taken over from a coordinator that died. Pushed on while the event is worked on."""
    first_delay: timedelta = timedelta(seconds=2)
    """Before the second attempt; doubles with each."""
    longest_delay: timedelta = timedelta(minutes=15)
    poll: timedelta = timedelta(seconds=5)
    make_way: timedelta = timedelta(milliseconds=30)
    """Between two claims while deliveries keep coming: whoever waits for an answer goes first."""


class Done(Struct, frozen=True):
    """What became of one claimed event. `status` is the event's, or `later`, `lost`."""

    event_id: str
    status: str
    run_ids: tuple[str, ...] = ()


class Pipeline:
    """Any number of coordinators may run it: a claim is one row's lock, and writing is fenced by it."""

    def __init__(
        self,
        holder: str,
        pool: Pool[Record],
        parts: Parts,
        settle: SettlesRuns,
        notifier: Notifies,
        settings: Settings,
        *,
        on_done: Callable[[Done], None] = lambda done: None,
    ) -> None:
        self._holder = holder
        self._pool = pool
        self._parts = parts
        self._writer = Writer(pool, settle, parts.labels, per_minute=settings.per_minute)
        self._notifier = notifier
        self._settings = settings
        self._on_done = on_done
        self._pace = Pace(settings.poll)
        self._free = settings.workers
        self._arrived = False
        """Since the last claim."""

    def wake(self, keys: set[str] | None = None) -> None:
        """There may be something to do. Takes what a listener passes."""
        self._arrived = True
        self._pace.wake()

    async def run(self) -> None:
        """Until cancelled. What is being worked on then is given back for somebody else to do at once."""
        try:
            async with asyncio.TaskGroup() as group:
                async for _ in self._pace:
                    self._arrived = False
                    for claim in await self._claim_if_possible():
                        group.create_task(self._work(claim))
                    await self._make_way()
        finally:
            await self._give_back()

    async def run_once(self) -> list[Done]:
        """Claim as many events as there are free workers, and work them off."""
        return list(await asyncio.gather(*(self._work(claim) for claim in await self._claim())))

    async def _make_way(self) -> None:
        """One delivery is worked off at once. Of many, taking them in comes before working them off: a sender waits for
        that with a time limit of its own, and the rest is safe in the database.
        """
        await asyncio.sleep(_LOOK_S)
        if self._arrived:
            await asyncio.sleep(self._settings.make_way.total_seconds())

    async def _claim_if_possible(self) -> list[Claim]:
        try:
            return await self._claim()
        except Exception as error:
            if not database.is_away(error):
                raise
            log.warning("events cannot be claimed, the database is away", error=str(error))
            return []

    async def _claim(self) -> list[Claim]:
        if not self._free:
            return []
        async with self._pool.acquire() as db:
            claims = await event_claims.claim(db, self._holder, self._settings.lease, self._free)
        self._free -= len(claims)
        return claims

    async def _work(self, claim: Claim) -> Done:
        try:
            with metrics.event_seconds.time():
                done = await self._worked(claim)
        finally:
            self._free += 1
            self._pace.wake()
        metrics.events.labels(done.status).inc()
        self._on_done(done)
        return done

    async def _worked(self, claim: Claim) -> Done:
        """Every failure ends in a sentence on the event, or leaves the claim to run out."""
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._keep(claim))
                result = await self._processed(claim)
                keeping.cancel()
            return await self._write(claim, result)
        except Exception as error:  # noqa: BLE001 - one bad event must not stop the others; its error is recorded
            return await self._failed(claim, _cause(error))

    async def _processed(self, claim: Claim) -> Result:
        if claim.attempt > self._settings.attempts:
            why = claim.last_error or "the orchestrator stopped each time while it worked on it"
            return results.ends("failed", f"given up after {self._settings.attempts} attempts: {why}")
        try:
            return await process(self._parts, claim)
        except BadRemote as error:
            return results.ends("failed", str(error))

    async def _write(self, claim: Claim, result: Result) -> Done:
        written = await self._writer.write(claim, result)
        written.wakes.send(self._notifier)
        log.info(
            "event processed",
            event_id=claim.event_id,
            delivery_id=claim.delivery_id,
            status=written.ended.status,
            message=written.ended.message,
            runs=list(written.run_ids),
        )
        return Done(claim.event_id, written.ended.status, tuple(written.run_ids))

    async def _failed(self, claim: Claim, error: Exception) -> Done:
        if isinstance(error, ClaimLost):
            log.warning("event lost to another worker", event_id=claim.event_id)
            return Done(claim.event_id, "lost")
        if database.is_away(error):
            log.warning("the database went away while an event was worked on", event_id=claim.event_id)
            return Done(claim.event_id, "later")
        if isinstance(error, GitError):
            log.warning("event cannot be processed now", event_id=claim.event_id, error=str(error))
        elif not database.is_transient(error):
            log.error("event could not be processed", event_id=claim.event_id, exc_info=error)
        return await self._try_later(claim, error)

    async def _try_later(self, claim: Claim, error: Exception) -> Done:
        doublings = min(claim.attempt - 1, 20)
        delay = min(self._settings.first_delay * 2**doublings, self._settings.longest_delay)
        why = str(error) if isinstance(error, KiciError) else f"{type(error).__name__}: {error}"
        try:
            async with self._pool.acquire() as db:
                await event_claims.try_later(db, claim, delay, why[:2000])
        except Exception as second:
            if not database.is_away(second):
                raise
            log.warning("the event's claim will run out", event_id=claim.event_id, error=str(second))
        return Done(claim.event_id, "later")

    async def _keep(self, claim: Claim) -> None:
        """Push the claim on while the event is worked on. Raises `ClaimLost`, which ends the work."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 3)
            async with self._pool.acquire() as db:
                if not await event_claims.renew(db, claim, self._settings.lease):
                    raise ClaimLost(f"event {claim.event_id} was taken over by another worker")

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(_STOP_S), self._pool.acquire() as db:
                given = await event_claims.give_back(db, self._holder)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("events in work were not given back, their claims will run out", error=str(error))
        else:
            if given:
                log.info("events in work given back", events=given)


def _cause(error: Exception) -> Exception:
    """What a task group wraps: the first thing that went wrong."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
