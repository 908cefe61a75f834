"""What becomes of a job that stands for others once its evaluation has succeeded: in the transaction of that end."""

from __future__ import annotations

import uuid
from collections.abc import Collection

import msgspec

from kici.engine import expansion
from kici.engine.expansion import Expansion
from kici.engine.lifecycle import JobEvent, JobStatus
from kici.orchestrator.lifecycle import needs
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.new_jobs import new_job
from kici.orchestrator.store import expansions, runs
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.expansions import Facts


async def expand(db: Db, locked: Locked, ready: Collection[str]) -> tuple[list[str], list[End]]:
    """Put jobs in the place of those of the ready ones that stand for some. Returns all jobs that are ready then, none
    of which stands for others, and the ends of those that are not to run.

    A stand-in whose jobs cannot be in the run ends as failed, with the reason; it never waits.
    """
    through: list[str] = []
    ends: list[End] = []
    waiting = list(ready)
    while waiting:
        job_id = waiting.pop(0)
        job = locked.jobs[job_id]
        if not job.stands_in:
            through.append(job_id)
        elif job.status is JobStatus.PENDING:
            released, ended = await _expand_one(db, locked, job_id)
            waiting += released
            ends += ended
    return through, ends


async def _expand_one(db: Db, locked: Locked, job_id: str) -> tuple[list[str], list[End]]:
    try:
        facts = await expansions.facts(db, job_id)
    except msgspec.ValidationError as error:
        return [], [_failed(locked, job_id, f"it was planned by another version of the orchestrator: {error}")]
    found = expansion.expand(facts.stand_in, facts.event, facts.result, facts.known)
    await expansions.forget_result(db, facts.init_id)
    if found.problem:
        return [], [_failed(locked, job_id, found.problem)]
    return await _put(db, locked, job_id, facts, found)


async def _put(db: Db, locked: Locked, job_id: str, facts: Facts, found: Expansion) -> tuple[list[str], list[End]]:
    ids = {one.name: str(uuid.uuid4()) for one in found.jobs}
    new = [new_job(one, facts.ids | ids) for one in found.jobs]
    await runs.add_jobs(db, facts.home, [msgspec.structs.replace(one, problem="", skip="") for one in new])
    dependants = await expansions.replace(db, job_id, [(one.job_id, one.name) for one in new])
    del locked.jobs[job_id]
    locked.wakes.runs.add(facts.home.run_id)
    await locked.include_jobs(db, ids.values())
    ends = []
    for one in new:
        if one.problem:
            ends.append(_failed(locked, one.job_id, one.problem, one.problem_category))
        elif one.skip:
            ends.append(End(one.job_id, JobEvent.SKIP, error=one.skip))
    settled = {one.job_id for one in ends}
    asked = [*dependants, *(one.job_id for one in new if one.job_id not in settled)]
    ready, skipped = await needs.ask(db, locked, asked)
    return ready, [*ends, *skipped]


def _failed(locked: Locked, job_id: str, error: str, category: str = "matrix_expansion") -> End:
    failure = {"scope": "job", "category": category, "message": error, "jobName": locked.jobs[job_id].job_name}
    return End(job_id, JobEvent.FAIL, error=error, init_failure=failure)
