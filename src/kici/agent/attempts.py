"""Which attempts this agent has: takes dispatches or refuses them, knows duplicates, hands on cancellations."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

import structlog
from msgspec import Struct

import kici
from kici.agent.job import Job, Workshop
from kici.wire.agent import (
    AttemptRef,
    Cancel,
    Dispatch,
    Heartbeat,
    Hello,
    JobRejected,
    Welcome,
)
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN

log = structlog.get_logger(__name__)

REMEMBERED = 1_000
"""Attempts that have ended, so that a late copy of their dispatch does not start them again."""


class Identity(Struct, frozen=True):
    boot_id: str
    labels: tuple[str, ...]
    """All of them."""
    facts: dict[str, object]


class Attempts:
    """A service: `run` owns the jobs' tasks. The other methods are called from the connection and from the drain."""

    def __init__(
        self,
        identity: Identity,
        shop: Workshop,
        *,
        disk: Callable[[], str],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._identity = identity
        self._shop = shop
        self._disk = disk
        self.on_change = on_change
        self._jobs: dict[AttemptRef, Job] = {}
        """Taken, and the end not yet acknowledged."""
        self._tasks: dict[AttemptRef, asyncio.Task[None]] = {}
        """Also of attempts that were withdrawn and are being killed."""
        self._here: set[AttemptRef] = set()
        """Something of them is on this machine: processes, or their directory, which goes after the end was told."""
        self._latest: OrderedDict[str, int] = OrderedDict()
        self.ended: Counter[str] = Counter()
        """Jobs whose end was told, by its status."""
        self.draining = False
        self._group: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Until `stop` and the last job's end. Cancelling it kills the jobs."""
        async with asyncio.TaskGroup() as self._group:
            await self._stopped.wait()

    # ── what the connection tells and asks ───────────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        settings = self._shop.settings
        return Hello(
            agent_id=settings.agent_id,
            boot_id=self._identity.boot_id,
            token=settings.agent_token,
            version=kici.__version__,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            labels=self._identity.labels,
            slots=settings.agent_slots,
            clock_ms=int(time.time() * 1000),
            attempts=tuple(self._jobs),
            draining=self.draining,
            facts=self._identity.facts,
        )

    def heartbeat(self, number: int) -> Heartbeat:
        return Heartbeat(number, attempts=tuple(self._working()), draining=self.draining, not_taking=self._disk())

    def welcomed(self, welcome: Welcome) -> None:
        for ref in welcome.forget:
            self._withdraw(ref)

    def dispatched(self, dispatch: Dispatch) -> None:
        ref = AttemptRef(dispatch.job_id, dispatch.attempt)
        latest = self._latest.get(dispatch.job_id, -1)
        if dispatch.attempt <= latest:
            log.info("left a dispatch aside", job=ref.job_id, attempt=ref.attempt, latest=latest)
            return
        for older in [other for other in self._jobs if other.job_id == ref.job_id]:
            self._withdraw(older)
        dying = [task for other, task in self._tasks.items() if other.job_id == ref.job_id]
        if refusal := self._refusal():
            log.info("job rejected", job=ref.job_id, attempt=ref.attempt, reason=refusal)
            self._shop.outbox.put(JobRejected(ref.job_id, ref.attempt, refusal))
            return
        self._remember(ref)
        assert self._group
        job = self._jobs[ref] = Job(dispatch, self._shop)
        self._here.add(ref)
        self._tasks[ref] = self._group.create_task(self._see_through(job, dying))

    def cancelled(self, cancel: Cancel) -> None:
        job = self._jobs.get(AttemptRef(cancel.job_id, cancel.attempt))
        if job and job.reported is None:
            job.cancel(cancel.reason, force=cancel.force)

    # ── what the drain tells and asks ────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Take no more jobs."""
        self.draining = True
        self._shop.standby.retire()
        self.on_change()

    def cancel_all(self, reason: str, *, force: bool = False) -> None:
        for job in list(self._jobs.values()):
            if job.reported is None:
                job.cancel(reason, force=force)

    async def idle(self) -> None:
        """Wait until the end of every job has been told (not: acknowledged) and nothing of any is left here."""
        while self._here:
            self._changed.clear()
            await self._changed.wait()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def running(self) -> int:
        return len(self._working())

    # ── ours ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _working(self) -> list[AttemptRef]:
        return [ref for ref, job in self._jobs.items() if job.reported is None]

    def _refusal(self) -> str | None:
        if self.draining:
            return "draining"
        if self.running >= self._shop.settings.agent_slots:
            return "busy"
        if self._disk():
            return "disk"
        return None

    def _remember(self, ref: AttemptRef) -> None:
        self._latest[ref.job_id] = ref.attempt
        self._latest.move_to_end(ref.job_id)
        while len(self._latest) > REMEMBERED:
            self._latest.popitem(last=False)

    async def _see_through(self, job: Job, dying: list[asyncio.Task[None]]) -> None:
        try:
            if dying:
                # Two attempts of one job never run at the same time, not even in two slots.
                await asyncio.wait(dying)
            await job.run()
        except Exception as error:
            # One job's accident must not take the others with it.
            log.exception("a job could not be carried out", job=job.ref.job_id)
            job.fail(f"the agent could not carry out the job: {type(error).__name__}: {error}")
        finally:
            self._here.discard(job.ref)
            if job.ended is not None:
                self.ended[job.ended.status] += 1
            self._changed.set()
            self.on_change()
        if job.reported is not None:
            await job.reported.outcome
        self._jobs.pop(job.ref, None)
        self._tasks.pop(job.ref, None)
        self._changed.set()

    def _withdraw(self, ref: AttemptRef) -> None:
        job = self._jobs.pop(ref, None)
        if job:
            log.warning("job withdrawn by the orchestrator", job=ref.job_id, attempt=ref.attempt)
            job.withdraw()
            self._changed.set()
