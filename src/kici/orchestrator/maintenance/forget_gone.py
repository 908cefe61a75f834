"""Deletes what agents, coordinators and holders of concurrency groups that are gone have left: their tables would grow
with every start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.leader_service import LeaderService
from kici.orchestrator.store import concurrency, coordinators, sessions
from kici.orchestrator.store.lease import Lease

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    kept: timedelta = timedelta(days=7)
    """As long as `store.known_labels` counts the labels of an agent that is gone, and as one can look up who held which
    slot."""
    interval: timedelta = timedelta(hours=1)
    batch: int = 5_000


class Pass(Struct, frozen=True):
    sessions: int
    coordinators: int
    slots: int = 0
    """Of concurrency groups."""


class ForgetGone(LeaderService[Pass]):
    """Leader-only. A pass is one transaction."""

    def __init__(
        self,
        pool: Pool[Record],
        held: Lease,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        super().__init__(pool, held, settings.interval, on_pass=on_pass)
        self._kept = settings.kept
        self._batch = settings.batch

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            done = Pass(
                sessions=await sessions.forget(db, closed_for=self._kept, batch=self._batch),
                coordinators=await coordinators.forget(db, gone_for=self._kept),
                slots=await concurrency.forget(db, closed_for=self._kept, batch=self._batch),
            )
        if done.sessions or done.coordinators or done.slots:
            log.info("forgot who is gone", sessions=done.sessions, coordinators=done.coordinators, slots=done.slots)
        return done

    def _is_full(self, done: Pass) -> bool:
        return self._batch in (done.sessions, done.slots)
