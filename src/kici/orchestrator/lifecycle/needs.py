"""What a job's end means for the jobs that need it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kici.engine.lifecycle import JobEvent
from kici.engine.needs import Skip, Start, decide
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import needs
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.needs import Waiting


async def release(db: Db, locked: Locked, ended: Collection[str]) -> tuple[list[str], list[End]]:
    """The dependants whose needs are met now, and the ends of those to be skipped.

    The runs are locked: of two jobs that end at once, on whatever coordinators, the second sees the first one's end.
    """
    return await _decided(db, locked, await needs.dependants(db, ended))


async def ask(db: Db, locked: Locked, job_ids: Collection[str]) -> tuple[list[str], list[End]]:
    """The same for jobs whose needs have been changed, or that are new."""
    return await _decided(db, locked, await needs.of_pending(db, job_ids))


async def _decided(db: Db, locked: Locked, waiting: Sequence[Waiting]) -> tuple[list[str], list[End]]:
    await locked.include_jobs(db, [one.job_id for one in waiting])
    ready: list[str] = []
    skipped: list[End] = []
    for one in waiting:
        match decide(one.needs, one.endings):
            case Start():
                ready.append(one.job_id)
            case Skip(reason):
                skipped.append(End(one.job_id, JobEvent.SKIP, error=reason))
    return ready, skipped
