"""A run that is run again: written by the API as an event, processed like every other.

The event of the first run is taken as it was, with its trust; the workflow is planned anew from its lock file. Jobs
that are not run again are born ended, as they ended in the earlier run. What functions of the workflow made is taken as
they made it, unless those are asked again: by name, with all, or because something that they need is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kici.engine import rerun as rules
from kici.engine.evaluation import init_name
from kici.engine.events import OF_DEFAULT_BRANCH, Event, Trust
from kici.engine.lifecycle import TERMINAL_RUN
from kici.engine.lockfile import PATH, LockFile, LockWorkflow
from kici.engine.rerun import JobOfRun, Mode
from kici.forges.git.errors import BadRemote
from kici.forges.git.remote import Remote
from kici.orchestrator.errors import Conflict
from kici.orchestrator.pipeline import new_runs, recorded, results
from kici.orchestrator.pipeline.lock_files import Corrupt, Found, Missing
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.results import Planned, Result
from kici.orchestrator.pipeline.subjects import Subject, remote_of
from kici.orchestrator.store import reruns
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.event_claims import Claim
from kici.orchestrator.store.reruns import Original, OriginalJob
from kici.orchestrator.store.runs import NewJob, NewRun, Rerun, Reused

PROVIDER = "rerun"
"""Of the event's row. No source has this provider, so no webhook can pass for the request of a person."""


class RerunRequest(Struct, frozen=True, rename="camel"):
    """Body of the event."""

    run_id: str
    """Of the run that is run again."""
    request_id: str
    mode: Mode
    job: str
    """Name with or without the matrix suffix; empty unless the mode is `job`."""
    current: bool
    """At the present head of the ref, not at the run's own commit."""
    actor: str
    """`type:id`"""


class Refused(Exception):
    """The run cannot be run again so. The message says why, and what can be done."""


async def handle(parts: Parts, claim: Claim) -> Result:
    """Raises a `GitError` for an outage of the forge: the request is then tried again."""
    request = msgspec.json.decode(claim.body or b"", type=RerunRequest)
    try:
        async with transaction(parts.pool) as db:
            original = await reruns.original(db, request.run_id)
            jobs = await reruns.jobs(db, request.run_id)
    except Conflict as error:
        return results.ends("failed", str(error))
    if original is None or original.status not in TERMINAL_RUN:
        return results.ends("failed", f"run {request.run_id} is not there any more, or has not ended")
    try:
        return await _planned(parts, claim, request, original, jobs)
    except (BadRemote, Refused) as error:
        return _ends(original, "failed", str(error))


async def _planned(
    parts: Parts, claim: Claim, request: RerunRequest, original: Original, jobs: Sequence[OriginalJob]
) -> Result:
    remote = await remote_of(parts.sources, original.clone_url, original.routing_key)
    event, lock_sha = original.event, original.workflow_sha
    if request.current:
        event, lock_sha = await _current(parts, remote, original)
    match await parts.lock_files.at(remote, lock_sha):
        case Missing(message):
            return _ends(original, "lockfile_missing", message)
        case Corrupt(message):
            return _ends(original, "lockfile_corrupt", message)
        case Found(lock, sha256):
            workflow = _workflow(lock, original.workflow_name, lock_sha)
            subject = Subject(
                event=event,
                clone_url=original.clone_url,
                provider=original.provider,
                routing_key=original.routing_key,
                triggered_by=request.actor,
            )
            place = LockPlace(lock_sha, sha256, original.lock_from_base)
            run, new = new_runs.build(claim, subject, workflow, None, place)
            planned = Planned(_again(run, request, original), _taking_over(new, request, jobs, event))
            return results.with_runs(_ends(original, "processed"), [planned])


async def _current(parts: Parts, remote: Remote, original: Original) -> tuple[Event, str]:
    """The event as if it had happened at the present head of its ref, and the commit whose lock file counts."""
    event = original.event
    if not event.ref:
        raise Refused("the run was started for a commit and not for a branch or tag: rerun it at its own commit")
    head = await parts.repositories.resolve(remote, event.ref)
    if head is None:
        raise Refused(f"{original.repo} has no {event.ref} any more: rerun the run at its own commit")
    from_base = event.trust is Trust.UNKNOWN
    if not from_base and event.type not in OF_DEFAULT_BRANCH:
        return replace(event, sha=head.sha), head.sha
    branch = event.base_branch or event.default_branch
    base = await parts.repositories.resolve(remote, f"refs/heads/{branch}")
    if base is None:
        raise Refused(f"{original.repo} has no branch {branch!r} any more, whose workflows count")
    return replace(event, sha=head.sha, before=base.sha if from_base else event.before), base.sha


def _workflow(lock: LockFile, name: str, sha: str) -> LockWorkflow:
    for workflow in lock.workflows:
        if workflow.name == name:
            return workflow
    there_are = ", ".join(sorted(workflow.name for workflow in lock.workflows)) or "none"
    raise Refused(f"{PATH} at {sha[:12]} has no workflow {name!r}; it has: {there_are}")


def _again(run: NewRun, request: RerunRequest, original: Original) -> NewRun:
    return replace(
        run,
        delivery_id=f"{PROVIDER}:{run.run_id}",
        trigger_event="rerun",
        rerun=Rerun(original.run_id, original.root_run_id, request.request_id, request.mode),
    )


def _taking_over(
    new: Sequence[NewJob], request: RerunRequest, earlier: Sequence[OriginalJob], event: Event
) -> list[NewJob]:
    """The jobs that are not run again become those of the earlier run. Only what is defined as it was can be."""
    if request.mode == "all":
        return list(new)
    named = {job.name for job in new if job.name == request.job and job.seed is not None and job.seed.job is None}
    stand_ins = recorded.without(new, earlier, recorded.restorable(new, earlier), named)
    while True:
        jobs = recorded.restored(new, earlier, stand_ins, event)
        known = _known(jobs, earlier)
        again = _to_run(jobs, known, request)
        asked = {name for name in stand_ins if init_name(name) in again}
        if not asked:
            break
        stand_ins = recorded.without(new, earlier, stand_ins, asked)
    return [
        job
        if job.name in again
        else replace(
            job, problem="", problem_category="", skip="", reused=Reused(known[job.name].job_id, known[job.name].status)
        )
        for job in jobs
    ]


def _to_run(jobs: Sequence[NewJob], known: Mapping[str, OriginalJob], request: RerunRequest) -> frozenset[str]:
    if request.mode == "job" and not any(request.job in (job.name, job.base_name) for job in jobs):
        there_are = ", ".join(sorted({job.base_name for job in jobs}))
        raise Refused(f"the workflow has no job {request.job!r}; it has: {there_are}")
    # Who wants anew what a stand-in stands for wants its functions asked.
    asking = {init_name(job.name): {job.name} for job in jobs if job.seed is not None}
    return rules.to_run(
        [
            JobOfRun(job.name, job.base_name, {need.upstream_name for need in job.needs} | asking.get(job.name, set()))
            for job in jobs
        ],
        {name: job.status for name, job in known.items()},
        request.mode,
        request.job,
    )


def _known(new: Sequence[NewJob], earlier: Sequence[OriginalJob]) -> Mapping[str, OriginalJob]:
    """By name: those that are defined as they were."""
    wanted = {job.name: job for job in new}
    return {
        job.name: job
        for job in earlier
        if (now := wanted.get(job.name))
        and job.definition == now.definition
        and bool(job.made_by) is (now.carried and now.seed is None)
    }


def _ends(original: Original, status: str, message: str = "") -> Result:
    return results.ends(status, message, repo=original.repo, ref=original.event.ref)
