"""A run that a person asks for: written by the API as an event, processed like every other."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kici.engine import inputs
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockFile, ManualTrigger
from kici.forges.git.errors import BadRemote
from kici.forges.git.refs import Resolved
from kici.orchestrator.pipeline import new_runs, results
from kici.orchestrator.pipeline.lock_files import Corrupt, Found, Missing
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.repository_events import plan_matching
from kici.orchestrator.pipeline.results import Planned, Result
from kici.orchestrator.pipeline.subjects import Subject, remote_of
from kici.orchestrator.store.event_claims import Claim
from kici.wire.api import RunStart

PROVIDER = "manual"
"""Of the event's row. No source has this provider, so no webhook can pass for the request of a person."""


class ManualStart(Struct, frozen=True, rename="camel"):
    """Body of the event."""

    start: RunStart
    repo: str
    provider: str
    routing_key: str
    clone_url: str
    default_branch: str
    actor: str
    """`type:id`"""


async def handle(parts: Parts, claim: Claim) -> Result:
    manual = msgspec.json.decode(claim.body or b"", type=ManualStart)
    remote = await remote_of(parts.sources, manual.clone_url, manual.routing_key)
    try:
        resolved = await parts.repositories.resolve(remote, manual.start.ref)
    except BadRemote as error:
        return _ends(manual, "failed", str(error))
    if resolved is None:
        wanted = repr(manual.start.ref) if manual.start.ref else "commit on its default branch"
        return _ends(manual, "failed", f"{manual.repo} has no {wanted}: name a branch, a tag or a full commit id")
    event = _event(manual, resolved)
    subject = Subject(
        event=event,
        clone_url=manual.clone_url,
        provider=manual.provider,
        routing_key=manual.routing_key,
        triggered_by=manual.actor,
    )
    match await parts.lock_files.at(remote, event.sha):
        case Missing(message):
            return _ends(manual, "lockfile_missing", message, event.ref)
        case Corrupt(message):
            run = new_runs.build_unresolved(claim, subject, event.sha, message, from_base=False)
            return results.with_runs(_ends(manual, "lockfile_corrupt", message, event.ref), [Planned(run)])
        case Found(lock, sha256):
            problem = _problem(lock, manual)
            if problem:
                return _ends(manual, "failed", problem, event.ref)
            return plan_matching(parts, claim, subject, lock.workflows, LockPlace(event.sha, sha256))


def _event(manual: ManualStart, resolved: Resolved) -> Event:
    return Event(
        type=EventType.MANUAL,
        branch=resolved.branch,
        tag=resolved.tag,
        sha=resolved.sha,
        repo=manual.repo,
        default_branch=resolved.default_branch or manual.default_branch,
        actor=manual.actor,
        workflow=manual.start.workflow,
        inputs=inputs.texts(manual.start.inputs),
    )


def _problem(lock: LockFile, manual: ManualStart) -> str:
    startable = [
        workflow.name
        for workflow in lock.workflows
        if any(isinstance(trigger, ManualTrigger) for trigger in workflow.triggers)
    ]
    name = manual.start.workflow
    if name in startable:
        return ""
    there_are = f"by hand one can start {', '.join(startable)}" if startable else "no workflow has manual()"
    if any(workflow.name == name for workflow in lock.workflows):
        return f"workflow {name!r} has no manual() among its triggers; {there_are}"
    return f"there is no workflow {name!r} at that commit; {there_are}"


def _ends(manual: ManualStart, status: str, message: str, ref: str = "") -> Result:
    return results.ends(status, message, repo=manual.repo, ref=ref)
