"""Looks whether every slot of a concurrency group has a living holder, and hands over those that have not.

Whatever ends a holder hands its slot over in its own transaction, so there should never be anything to do; if there is,
deployments would stop until somebody notices.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from msgspec import Struct
from prometheus_client import Counter

from kici.orchestrator.lifecycle.group_repair import Repaired, repair
from kici.orchestrator.maintenance.sweeper import Settings, Sweeper
from kici.orchestrator.store import concurrency
from kici.orchestrator.store.concurrency import Group

log = structlog.get_logger(__name__)

SETTINGS = Settings(interval=timedelta(seconds=30), batch=100)

REPAIRED = Counter(
    "kici_concurrency_repaired_total",
    "Slots of concurrency groups that the sweep had to set right: of holders that had ended, or free beside a waiter",
    ["what"],
)


class Pass(Struct, frozen=True):
    """Groups that looked wrong, and what of them was wrong and is set right."""

    found: int
    ended: int
    idle: int


class RepairConcurrency(Sweeper[Pass]):
    """Leader-only. Each group is a transaction of its own; one whose scope is locked elsewhere is left to whoever has
    it."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            found = {*await concurrency.find_ended(db, self._batch), *await concurrency.find_idle(db, self._batch)}
        done = [one for group in sorted(found) if (one := await self._repair(group)) is not None]
        return Pass(len(found), sum(one.ended for one in done), sum(one.idle for one in done))

    async def _repair(self, group: Group) -> Repaired | None:
        async with self._transaction() as db:
            done = await repair(db, self._limits, group)
        if done is not None and (done.ended or done.idle):
            done.wakes.send(self._notifier)
            REPAIRED.labels("ended").inc(done.ended)
            REPAIRED.labels("idle").inc(done.idle)
            log.error(
                "repaired a concurrency group",
                scope=group.scope,
                group=group.name,
                holders_that_had_ended=done.ended,
                waiters_beside_a_free_slot=done.idle,
            )
        return done
