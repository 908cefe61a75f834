"""Services of which one in the whole cluster runs: whoever holds the lease runs them, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from prometheus_client import Counter

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.services import Service, supervise
from kici.orchestrator.store import lease
from kici.orchestrator.store.database import is_away
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)

CHANGES = Counter(
    "kici_lease_changes_total", "How often this coordinator has taken or lost a lease", ["lease", "change"]
)


class Leader:
    """Holds a lease while it can, and runs the services that `services` makes for each time it is held.

    They stop when the lease is lost: when somebody else took it, when a service met `LeaseLost`, or when it could not
    be renewed in time. Safety does not rest on that, but on the guard in each of their transactions.
    """

    def __init__(
        self,
        pool: Pool[Record],
        name: str,
        instance: str,
        services: Callable[[Lease], Sequence[Service]],
        *,
        ttl: timedelta = timedelta(seconds=15),
    ) -> None:
        self._pool = pool
        self._name = name
        self._instance = instance
        self._services = services
        self._ttl = ttl
        self._until = float("-inf")
        self._held: Lease | None = None

    @property
    def leads(self) -> bool:
        return self._held is not None and time.monotonic() < self._until

    async def run(self) -> None:
        """Seek the lease, lead, and seek again, until cancelled."""
        while True:
            held = await self._seek()
            self._held = held
            CHANGES.labels(self._name, "taken").inc()
            log.info("this coordinator leads", lease=held.name, token=held.token)
            try:
                await self._lead(held)
            except asyncio.CancelledError:
                await self._release(held)
                raise
            finally:
                self._held = None

    async def _seek(self) -> Lease:
        while True:
            held = await self._acquire(self._ttl.total_seconds() / 3)
            if held is not None:
                return held
            await asyncio.sleep(self._ttl.total_seconds() / 3)

    async def _lead(self, held: Lease) -> None:
        """Run the services until the lease is lost."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for service in self._services(held):
                    name = f"{self._name}: {type(service).__name__}"
                    tasks.create_task(supervise(service, passes=LeaseLost), name=name)
                tasks.create_task(self._keep(held), name=f"{self._name}: renewal")
        except* LeaseLost:
            CHANGES.labels(self._name, "lost").inc()
            log.info("this coordinator leads no longer", lease=held.name, token=held.token)

    async def _keep(self, held: Lease) -> None:
        """Renew until it is lost."""
        interval = self._ttl.total_seconds() / 3
        while (left := self._until - time.monotonic()) > 0:
            await asyncio.sleep(min(interval, max(left / 2, 0.01)))
            renewed = await self._acquire(min(interval, self._until - time.monotonic()))
            if renewed is not None and renewed.token != held.token:
                break  # it ran out and was taken anew: what began under the old token ends
        raise LeaseLost(held.name)

    async def _acquire(self, patience: float) -> Lease | None:
        """None while somebody else holds it, or the database is away."""
        before = time.monotonic()
        try:
            async with asyncio.timeout(patience), self._pool.acquire() as db:
                held = await lease.acquire(db, self._name, self._instance, self._ttl)
        except Exception as error:
            if not is_away(error):
                raise
            log.warning("a lease could not be asked for", lease=self._name, error=repr(error))
            return None
        if held is not None:
            self._until = before + self._ttl.total_seconds()
        return held

    async def _release(self, held: Lease) -> None:
        try:
            async with asyncio.timeout(1), self._pool.acquire() as db:
                await lease.release(db, held)
        except Exception as error:
            if not is_away(error):
                raise
            log.info("a lease was not given up: it runs out by itself", lease=held.name, error=repr(error))
