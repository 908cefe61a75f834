"""Acts where a recovery or a cancellation has passed its deadline: the next attempt, or the end."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from msgspec import Struct

from kici.orchestrator.lifecycle.deadlines import end_cancelled
from kici.orchestrator.lifecycle.locked import Locked, lock_free_jobs
from kici.orchestrator.lifecycle.loss import give_up, settle
from kici.orchestrator.maintenance.sweeper import Sweeper
from kici.orchestrator.store import jobs

log = structlog.get_logger(__name__)


class Pass(Struct, frozen=True):
    found: int
    lost: int
    cancelled: int


class SettleOverdue(Sweeper[Pass]):
    """Leader-only."""

    async def run_once(self) -> Pass:
        async with self._transaction() as db:
            if await self._is_outage_just_over(db):
                return Pass(0, 0, 0)
            found = await jobs.find_overdue(db, self._lease, self._batch)
            locked = await lock_free_jobs(db, self._limits, found)
            passed = await jobs.past_deadlines(db, locked.jobs)
            locked.wakes.sessions |= {
                job.session_id for job_id, job in locked.jobs.items() if job_id in passed and job.session_id
            }
            silent = {job_id: self._why(locked, job_id, which) for job_id, which in passed.items()}
            again, over, cancelled = (_where(passed, silent, which) for which in ("recovery", "report", "cancel"))
            await settle(db, locked, again)
            await give_up(db, locked, over)
            ended = await end_cancelled(db, locked, cancelled)
        locked.wakes.send(self._notifier)
        if passed:
            log.warning("settled jobs past their deadline", lost=len(again) + len(over), cancelled=len(cancelled))
        return Pass(len(found), len(again) + len(over), ended)

    def _is_full(self, done: Pass) -> bool:
        return done.lost + done.cancelled == self._batch

    def _why(self, locked: Locked, job_id: str, which: str) -> str:
        agent_id = locked.jobs[job_id].agent_id
        if which == "cancel":
            return f"agent {agent_id} did not report the end in time"
        limit = self._limits.report_window_s if which == "report" else self._limits.recovery_s
        return f"agent {agent_id} was silent for {limit:.0f} s"


def _where(passed: Mapping[str, str], reasons: Mapping[str, str], which: str) -> dict[str, str]:
    return {job_id: reasons[job_id] for job_id, one in passed.items() if one == which}
