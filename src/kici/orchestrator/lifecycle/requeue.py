"""An attempt is over without an end: the job waits for its next one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from kici.engine.lifecycle import JobEvent, Rejected
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import jobs, queue
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.queue import Release

FIRST_REJECTION_DELAY_S = 0.1
LONGEST_REJECTION_DELAY_S = 10.0


async def requeue(
    db: Db,
    locked: Locked,
    delays: Mapping[str, float],
    *,
    given_back: bool = False,
    why: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Back to the lanes, each after its delay. The next claim has the next number, whether or not this one counts.

    `why` says what became of the attempt; it is told while the job waits for the next one.
    """
    moved = []
    for job_id in delays:
        if isinstance(locked.move_job(job_id, JobEvent.REQUEUE), Rejected):
            continue
        locked.jobs[job_id] = replace(locked.jobs[job_id], session_id=None)
        locked.queue[job_id] = replace(
            locked.queue[job_id],
            session_id=None,
            accepted_at=None,
            rejections=locked.queue[job_id].rejections + given_back,
        )
        moved.append(job_id)
    if moved:
        await jobs.requeue(db, moved)
        await queue.release(
            db,
            [
                Release(
                    job_id,
                    delays[job_id],
                    given_back=given_back,
                    expires_s=locked.limits.queue_timeout_s,
                    why=why.get(job_id, ""),
                )
                for job_id in moved
            ],
        )
        locked.wakes.queue = True


async def give_back(db: Db, locked: Locked, back: Mapping[str, str]) -> None:
    """Claims (job → why) that an agent has rejected, or that could not be sent, go back without using up an attempt.

    Each time a little later, so that a job that nobody can take now does not keep everybody busy.
    """
    delays = {job_id: rejection_delay_s(locked.queue[job_id].rejections) for job_id in back}
    await requeue(db, locked, delays, given_back=True, why=back)


def rejection_delay_s(rejections: int) -> float:
    return min(FIRST_REJECTION_DELAY_S * 2.0 ** min(rejections, 10), LONGEST_REJECTION_DELAY_S)
