"""From a workflow that an event starts to the rows of its run."""

from __future__ import annotations

import uuid

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import plan
from kici.engine.events import Event, Trust
from kici.engine.lockfile import LockWorkflow
from kici.engine.plan import Plan
from kici.engine.triggers import Decision
from kici.orchestrator.lifecycle.new_jobs import new_job
from kici.orchestrator.pipeline.subjects import Subject
from kici.orchestrator.store.event_claims import Claim
from kici.orchestrator.store.runs import NewJob, NewRun, policy

UNRESOLVED = "(unresolved workflow)"
"""Stands for the workflows of a lock file that cannot be read."""


class LockPlace(Struct, frozen=True):
    """Where the definition comes from."""

    sha: str
    sha256: str
    from_base: bool = False
    """The base branch of a pull request, not its head."""


def build(
    claim: Claim, subject: Subject, workflow: LockWorkflow, decision: Decision | None, lock: LockPlace
) -> tuple[NewRun, list[NewJob]]:
    planned = plan.plan(workflow, subject.event)
    run = replace(
        _run(claim, subject, workflow.name, lock),
        decision=decision,
        timeout_ms=workflow.timeout_ms,
        concurrency_scope=concurrency_scope(subject.routing_key, subject.event),
        concurrency_group=planned.concurrency_group,
        concurrency=policy(workflow.concurrency),
    )
    failure, category = _failure(planned)
    if failure:
        return replace(run, failure=failure, failure_category=category), []
    ids = {job.name: str(uuid.uuid4()) for job in planned.jobs}
    return run, [new_job(job, ids) for job in planned.jobs]


def build_unresolved(claim: Claim, subject: Subject, sha: str, message: str, *, from_base: bool) -> NewRun:
    """The failed run that makes a corrupt lock file visible where people look."""
    run = _run(claim, subject, UNRESOLVED, LockPlace(sha, "", from_base))
    return replace(run, failure=message, failure_category="lock_resolution")


def concurrency_scope(routing_key: str, event: Event) -> str:
    """Where the groups of the event's runs live: an untrusted pull request has a scope of its own, so that whatever it
    calls its branch, it neither waits for nor supersedes runs of the repository, or of another pull request."""
    scope = f"{routing_key}::{event.repo}"
    return scope if event.trust is Trust.TRUSTED else f"{scope}::pr-{event.pr_number}"


def trigger_event(event: Event) -> str:
    return f"{event.type}:{event.action}" if event.action else str(event.type)


def _run(claim: Claim, subject: Subject, workflow_name: str, lock: LockPlace) -> NewRun:
    event = subject.event
    untrusted = event.trust is Trust.UNKNOWN
    return NewRun(
        run_id=str(uuid.uuid4()),
        event_id=claim.event_id,
        workflow_name=workflow_name,
        provider=subject.provider,
        routing_key=subject.routing_key,
        repo=event.repo,
        ref=event.ref,
        sha=event.sha,
        workflow_sha=lock.sha,
        lock_sha256=lock.sha256,
        clone_url=subject.clone_url,
        event=event,
        delivery_id=claim.delivery_id,
        trigger_event=trigger_event(event),
        triggered_by=subject.triggered_by,
        trust_tier=str(event.trust) if untrusted else None,
        lock_file_source=("base" if lock.from_base else "head") if untrusted else None,
    )


def _failure(planned: Plan) -> tuple[str, str]:
    """Why the run as a whole cannot be made, and the category of that."""
    if planned.problem:
        return planned.problem, "matrix_expansion"
    return planned.concurrency_problem, "environment_rules"
