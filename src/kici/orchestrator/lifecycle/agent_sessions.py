"""What becomes of an agent's jobs when it arrives, falls silent, is heard again, or leaves.

Each is one transaction's work: session rows first, then runs, jobs and queue rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct
from prometheus_client import Counter

from kici.engine.lifecycle import JobStatus
from kici.orchestrator.lifecycle import loss
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked, lock_jobs
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import jobs, queue, sessions
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.sessions import NewSession, Session
from kici.wire.agent import AttemptRef

LOST = Counter("kici_sessions_lost_total", "Sessions of agents that were given up for silent or gone", ["why"])
"""To be counted after the commit: `silent`, `coordinator_gone`, `revoked`."""


class Adopted(Struct, frozen=True):
    """The session is open."""

    kept: dict[str, int]
    """Job → attempt that the agent goes on with. Claims that it has not accepted yet are among them."""
    forget: tuple[AttemptRef, ...]
    """Listed, but not its any more."""
    wakes: Wakes


class Foreign(Struct, frozen=True):
    """The agent's name belongs to another token, whose agent is there."""


async def arrive(
    db: Db,
    limits: Limits,
    new: NewSession,
    listed: Collection[AttemptRef],
    *,
    is_dropped: Callable[[str], bool] = lambda session_id: False,
) -> Adopted | Foreign:
    """Open the session of an agent that said hello; it supersedes all others of the agent.

    Attempts that the agent lists go on under the new session. Those that it does not list, it has lost: that is settled
    at once. `is_dropped` knows sessions whose socket is gone although they are not lost yet.
    """
    older = await sessions.lock_agent(db, new.agent_id)
    ours = {one.id for one in older if one.token_id == new.token_id}
    if any(_is_there(one, is_dropped) for one in older if one.id not in ours):
        return Foreign()
    all_ids = {one.id for one in older}
    held = (await jobs.of_sessions(db, all_ids)).keys() | (await queue.claims_of(db, all_ids)).keys()
    locked = await lock_jobs(db, limits, held | {ref.job_id for ref in listed})
    await sessions.insert(db, new)
    await sessions.close(db, all_ids)
    kept = {ref.job_id: ref.attempt for ref in listed if _goes_on(locked, ref, ours)}
    reported = {ref.job_id for ref in listed if _has_reported(locked, ref, new.agent_id)}
    await _move(db, locked, kept, new.id)
    await loss.resume(db, locked, reported, new.id)
    why = f"agent {new.agent_id} came back without it"
    await loss.settle(db, locked, _of_sessions(locked, all_ids, why))
    locked.wakes.sessions |= all_ids
    return Adopted(kept, tuple(ref for ref in listed if ref.job_id not in kept.keys() | reported), locked.wakes)


async def fall_silent(db: Db, limits: Limits, session_id: str, *, heard_s: float) -> Wakes | None:
    """The agent's last message that we acknowledged is `heard_s` old. None: the session is lost or over already."""
    found = await sessions.lock(db, [session_id])
    if not found or found[0].lost:
        return None
    await sessions.lose(db, session_id, heard_s=heard_s)
    running = await jobs.of_sessions(db, [session_id])
    locked = await lock_jobs(db, limits, running)
    still = [job_id for job_id, job in locked.jobs.items() if job.session_id == session_id]
    await loss.fall_silent(db, locked, still, heard_s=heard_s)
    return locked.wakes


async def be_heard(db: Db, limits: Limits, session_id: str) -> Wakes | None:
    """The agent speaks again, or its coordinator has its lease again. None: the session is over."""
    found = await sessions.lock(db, [session_id])
    if not found:
        return None
    await sessions.regain(db, [session_id])
    recovering = await jobs.of_sessions(db, [session_id])
    locked = await lock_jobs(db, limits, recovering)
    back = [
        job_id
        for job_id, job in locked.jobs.items()
        if job.session_id == session_id and job.status is JobStatus.RECOVERING
    ]
    await loss.resume(db, locked, back, session_id)
    return locked.wakes


async def leave(db: Db, limits: Limits, session_id: str) -> Wakes | None:
    """The agent says goodbye: it has no attempt any more. None: the session was over already."""
    found = await sessions.lock(db, [session_id])
    if not found:
        return None
    held = (await jobs.of_sessions(db, [session_id])).keys() | (await queue.claims_of(db, [session_id])).keys()
    locked = await lock_jobs(db, limits, held)
    await sessions.close(db, [session_id])
    await loss.settle(db, locked, _of_sessions(locked, {session_id}, f"agent {found[0].agent_id} has left"))
    return locked.wakes


async def revoke(db: Db, limits: Limits, session_id: str) -> Wakes | None:
    """The agent's token is not valid any more: it may tell nothing more. None: the session was over already.

    What it had not accepted goes back. What it runs it may run on for a while: the next attempt waits for the deadline
    at which the agent kills, and where there is none the job has ended.
    """
    found = await sessions.lock(db, [session_id])
    if not found:
        return None
    held = (await jobs.of_sessions(db, [session_id])).keys() | (await queue.claims_of(db, [session_id])).keys()
    locked = await lock_jobs(db, limits, held)
    why = f"the token of agent {found[0].agent_id} was revoked"
    if not found[0].lost:
        await sessions.lose(db, session_id, heard_s=0)
    mine = _of_sessions(locked, {session_id}, why)
    await loss.forsake(db, locked, mine)
    locked.wakes.sessions.add(session_id)
    return locked.wakes


def _is_there(session: Session, is_dropped: Callable[[str], bool]) -> bool:
    return session.alive and not session.lost and not is_dropped(session.id)


def _goes_on(locked: Locked, ref: AttemptRef, ours: set[str]) -> bool:
    job, row = locked.jobs.get(ref.job_id), locked.queue.get(ref.job_id)
    if job is None or row is None or job.ended:
        return False
    return row.attempt == ref.attempt and row.session_id in ours


def _has_reported(locked: Locked, ref: AttemptRef, agent_id: str) -> bool:
    """The end of the attempt is written and the agent does not know it yet: it tells it again, in this session."""
    job = locked.jobs.get(ref.job_id)
    return (
        job is not None
        and job.ended
        and job.session_id is not None
        and (job.attempt, job.agent_id) == (ref.attempt, agent_id)
    )


async def _move(db: Db, locked: Locked, kept: Mapping[str, int], session_id: str) -> None:
    if not kept:
        return
    begun = [job_id for job_id in kept if locked.jobs[job_id].status is not JobStatus.QUEUED]
    await loss.resume(db, locked, begun, session_id)
    await queue.move(db, kept.keys(), session_id, locked.limits.ack_timeout_s)
    locked.note_moved(kept.keys(), session_id)


def _of_sessions(locked: Locked, session_ids: Collection[str], why: str) -> dict[str, str]:
    return {job_id: why for job_id, row in locked.queue.items() if row.session_id in session_ids}
