"""Concurrency groups: runs and jobs join them, wait, are superseded, and hand their slots over.

Everything here happens under the lock of the groups' scope (see `store.concurrency`), so no two transactions decide
about one group at once, and a slot never lies idle between the transaction that frees it and its next holder.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from kici.engine import concurrency as rule
from kici.engine.concurrency import Entry, Policy
from kici.engine.lifecycle import TERMINAL_RUN, JobStatus
from kici.orchestrator.lifecycle import admission_metrics as metrics
from kici.orchestrator.lifecycle.ending import End
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.stop import stop, stop_run
from kici.orchestrator.store import concurrency
from kici.orchestrator.store.concurrency import Arrival, Group, Slot, Standing
from kici.orchestrator.store.database import Db

BY = "orchestrator:concurrency"
"""Stands as `cancelled_by` of runs that others have superseded."""


class Granted(Struct):
    """Who has got a slot."""

    jobs: list[str]
    runs: list[str]


class _Newcomer(Struct, frozen=True):
    run_id: str
    job_id: str | None
    policy: Policy


async def waiting_runs(db: Db, locked: Locked, run_ids: Collection[str]) -> set[str]:
    """Those of these runs whose jobs may not start yet: the whole run waits for its group."""
    grouped = {run_id for run_id in run_ids if locked.runs[run_id].concurrency_group}
    if not grouped:
        return set()
    return {run_id for run_id, status in (await concurrency.of_runs(db, grouped)).items() if status == "queued"}


async def join_runs(db: Db, locked: Locked, run_ids: Sequence[str]) -> list[End]:
    """New runs join their groups, in this order. Returns the ends of what they supersede."""
    grouped = [run_id for run_id in run_ids if locked.runs[run_id].concurrency_group]
    if not grouped:
        return []
    policies = await concurrency.policies_of_runs(db, grouped)
    ends: list[End] = []
    for run_id in grouped:
        newcomer = _Newcomer(run_id, None, policies.get(run_id, Policy()))
        ends += (await _join(db, locked, _group_of_run(locked, run_id), [newcomer]))[1]
    return ends


async def join_jobs(db: Db, locked: Locked, job_ids: Iterable[str]) -> tuple[set[str], list[End]]:
    """Jobs that have passed every other gate join their groups. Returns those that have a slot, or need none, and the
    ends of what they supersede. The slot of a run counts for its jobs that name the same group."""
    free: set[str] = set()
    by_group: dict[Group, list[str]] = {}
    for job_id in job_ids:
        job = locked.jobs[job_id]
        run = locked.runs[job.run_id]
        if not job.concurrency_group or not run.concurrency_scope:
            free.add(job_id)
        else:
            by_group.setdefault(Group(run.concurrency_scope, job.concurrency_group), []).append(job_id)
    if not by_group:
        return free, []
    own = await concurrency.of_runs(db, {locked.jobs[job_id].run_id for ids in by_group.values() for job_id in ids})
    policies = await concurrency.policies_of_jobs(db, [job_id for ids in by_group.values() for job_id in ids])
    ends: list[End] = []
    for group, ids in sorted(by_group.items()):
        covered = {
            job_id
            for job_id in ids
            if locked.jobs[job_id].run_id in own and _group_of_run(locked, locked.jobs[job_id].run_id) == group
        }
        newcomers = [
            _Newcomer(locked.jobs[job_id].run_id, job_id, policies.get(job_id, Policy()))
            for job_id in ids
            if job_id not in covered
        ]
        started, more = await _join(db, locked, group, newcomers)
        free |= covered | started
        ends += more
    return free, ends


async def _join(db: Db, locked: Locked, group: Group, newcomers: Sequence[_Newcomer]) -> tuple[set[str], list[End]]:
    """Returns ids of those that start (of a job the job's, of a run the run's)."""
    if not newcomers:
        return set(), []
    stands = await concurrency.standing(db, group)
    arrivals: list[Arrival] = []
    started: set[str] = set()
    superseded: dict[str, str] = {}
    stopped: dict[str, str] = {}
    for one in newcomers:
        entry = Entry(str(uuid.uuid4()), one.run_id, one.policy.max, one.policy.keeps_latest)
        decision = rule.admit(stands.holders, stands.waiters, entry, cancel_in_progress=one.policy.cancel_in_progress)
        superseded |= dict.fromkeys(decision.supersede, one.run_id)
        stopped |= dict.fromkeys(decision.stop, one.run_id)
        _note(stands, entry, decision)
        stands.slots[entry.id] = Slot(entry.id, one.run_id, one.job_id)
        arrivals.append(Arrival(entry.id, group, one.run_id, one.job_id, one.policy, decision.starts))
        locked.wakes.count(metrics.STARTED_AT_ONCE if decision.starts else metrics.WAITS)
        if decision.starts:
            started.add(one.job_id or one.run_id)
    await concurrency.insert(db, arrivals)
    locked.wakes.count(metrics.SUPERSEDED_WAITERS, len(superseded))
    locked.wakes.count(metrics.SUPERSEDED_HOLDERS, len(stopped))
    ends = []
    for entry_id, newer in (superseded | stopped).items():
        ends += await _supersede(db, locked, stands.slots[entry_id], group, newer)
    return started, ends


def _note(stands: Standing, entry: Entry, decision: rule.Admission) -> None:
    """The group as it stands for the next one that arrives in the same transaction."""
    stands.waiters[:] = [one for one in stands.waiters if one.id not in decision.supersede]
    stands.holders[:] = [
        Entry(one.id, one.run_id, one.max, one.keep_latest, stopping=one.stopping or one.id in decision.stop)
        for one in stands.holders
    ]
    (stands.holders if decision.starts else stands.waiters).append(entry)


async def _supersede(db: Db, locked: Locked, slot: Slot, group: Group, newer: str) -> list[End]:
    """Stop who holds the slot, or waits for one. The slot is free once it has ended."""
    reason = f"superseded by run {newer} in concurrency group {group.name}"
    await locked.include_runs(db, [slot.run_id])
    if slot.run_id not in locked.runs:
        return []
    if slot.job_id is None:
        await locked.include_open_jobs(db, slot.run_id)
        return await stop_run(db, locked, slot.run_id, by=BY, reason=reason)
    await locked.include_jobs(db, [slot.job_id])
    await locked.include_rows(db, [slot.job_id])
    return await stop(db, locked, {slot.job_id} & locked.open_jobs(slot.run_id), reason=reason)


async def release(db: Db, locked: Locked, ended: Collection[str]) -> set[Group]:
    """These jobs have ended: they hold nothing any more. Returns the groups in which somebody else may start."""
    grouped = {job_id for job_id in ended if locked.jobs[job_id].concurrency_group}
    if not grouped:
        return set()
    return await concurrency.close_jobs(db, grouped, {locked.jobs[job_id].run_id for job_id in grouped})


async def release_runs(db: Db, locked: Locked, ended: Collection[str]) -> set[Group]:
    """The same for runs that have ended."""
    grouped = {run_id for run_id in ended if locked.runs[run_id].concurrency_group}
    return await concurrency.close_runs(db, grouped) if grouped else set()


async def hand_over(db: Db, locked: Locked, groups: Iterable[Group]) -> Granted:
    """Give what is free in these groups to those who wait, in their order. Who has ended meanwhile is passed over."""
    granted = Granted([], [])
    for group in sorted(groups):
        stands = await concurrency.standing(db, group)
        gone = []
        while True:
            ids = rule.hand_over(stands.holders, stands.waiters)
            dead = [one for one in ids if not await _is_waiting(db, locked, stands.slots[one])]
            if not dead:
                break
            gone += dead
            stands.waiters[:] = [one for one in stands.waiters if one.id not in dead]
        if gone:
            await concurrency.close(db, gone)
        if ids:
            await concurrency.activate(db, ids)
            locked.wakes.count(metrics.HANDED_OVER, len(ids))
        for one in map(stands.slots.__getitem__, ids):
            if one.job_id is None:
                granted.runs.append(one.run_id)
            else:
                granted.jobs.append(one.job_id)
    return granted


async def _is_waiting(db: Db, locked: Locked, slot: Slot) -> bool:
    await locked.include_runs(db, [slot.run_id])
    run = locked.runs.get(slot.run_id)
    if run is None or run.status in TERMINAL_RUN:
        return False
    if slot.job_id is None:
        await locked.include_open_jobs(db, slot.run_id)
        return True
    await locked.include_jobs(db, [slot.job_id])
    job = locked.jobs.get(slot.job_id)
    return job is not None and job.status is JobStatus.PENDING


def _group_of_run(locked: Locked, run_id: str) -> Group:
    run = locked.runs[run_id]
    return Group(run.concurrency_scope or "", run.concurrency_group or "")
