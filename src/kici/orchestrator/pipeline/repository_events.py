"""Pushes, tags, pull requests and dispatches: events that have a repository and a commit."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import inputs, triggers
from kici.engine.errors import InputError
from kici.engine.events import OF_DEFAULT_BRANCH, Event, EventType, Trust
from kici.engine.lockfile import LockWorkflow
from kici.forges.git.remote import Remote
from kici.orchestrator.pipeline import changed_files, matching, new_runs, results
from kici.orchestrator.pipeline.lock_files import Corrupt, Found, LockAnswer, Missing
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.results import Planned, Registering, Result
from kici.orchestrator.pipeline.subjects import Subject, remote_of
from kici.orchestrator.store.event_claims import Claim
from kici.orchestrator.store.registrations import Repository, RepositoryContext


class _Locked(Struct, frozen=True):
    """An answer about the lock file, and where it was looked for."""

    answer: LockAnswer
    sha: str
    from_base: bool


async def handle(parts: Parts, claim: Claim, subject: Subject) -> Result:
    event = subject.event
    if event.deleted:
        return _ends(event, "ignored", f"{event.tag or event.branch} was deleted: there is no commit to run")
    remote = await remote_of(parts.sources, subject.clone_url, subject.routing_key)
    marker = triggers.skip_requested(event.message) if event.trust is Trust.TRUSTED else None
    if marker and not _updates_default_branch(event):
        return _skips(event, marker)
    located = await _with_commit(parts, remote, subject)
    if located is None:
        return _ends(event, "failed", f"the repository has no {_named(event)} to run")
    locked = await _lock_file(parts, remote, located.event)
    if locked is None:
        branch = event.base_branch or event.default_branch
        return _ends(event, "failed", f"the repository has no branch {branch!r}, whose workflows count")
    result = await _runs(parts, claim, remote, located, locked) if not marker else _skips(event, marker)
    return replace(result, registering=_registering(claim, located, locked.answer))


async def _runs(parts: Parts, claim: Claim, remote: Remote, subject: Subject, locked: _Locked) -> Result:
    event = subject.event
    match locked.answer:
        case Missing(message):
            return _ends(event, "lockfile_missing", message)
        case Corrupt(message):
            run = new_runs.build_unresolved(claim, subject, locked.sha, message, from_base=locked.from_base)
            return results.with_runs(_ends(event, "lockfile_corrupt", message), [Planned(run, may_have_twin=True)])
        case Found(lock, sha256):
            place = LockPlace(locked.sha, sha256, locked.from_base)
            own = await changed_files.by_workflow(parts, remote, subject, lock.workflows)
            return plan_matching(parts, claim, subject, lock.workflows, place, own, may_have_twin=True)


def plan_matching(
    parts: Parts,
    claim: Claim,
    subject: Subject,
    workflows: tuple[LockWorkflow, ...],
    place: LockPlace,
    own: Mapping[str, Event] | None = None,
    *,
    may_have_twin: bool = False,
) -> Result:
    """Match, and plan a run for each workflow that wants the event and takes its inputs.

    `own`: the event as a workflow sees it, by name. Inputs that nobody takes fail the event; those that only some take
    are told as a warning.
    """
    events = own or {}
    found = matching.match_all(workflows, subject.event, events)
    runs, refused = [], []
    for one in found.matched:
        event = events.get(one.workflow.name, subject.event)
        try:
            seen = replace(subject, event=inputs.applied(one.trigger, event))
        except InputError as error:
            refused.append(f"{one.workflow.name}: {error}")
            continue
        seen = replace(seen, event=replace(seen.event, delivery_id=claim.delivery_id))
        run, jobs = new_runs.build(claim, seen, one.workflow, one.decision, place)
        runs.append(Planned(run, jobs, may_have_twin))
    if refused and not runs:
        result = _ends(subject.event, "failed", "; ".join(refused))
    else:
        result = _ends(subject.event, "processed")
    warnings = [*found.remarks, *(refused if runs else ())]
    return results.with_runs(replace(result, ended=replace(result.ended, warnings=warnings)), runs)


async def _with_commit(parts: Parts, remote: Remote, subject: Subject) -> Subject | None:
    """An event that names no commit, as a dispatch does, is about the head of its branch now."""
    event = subject.event
    if event.sha:
        return subject
    resolved = await parts.repositories.resolve(remote, event.ref)
    if resolved is None and event.type is EventType.RELEASE:
        # A draft has no tag yet, a release that is gone may have none any more: it is told on the default branch.
        event = replace(event, tag="", branch=event.default_branch)
        resolved = await parts.repositories.resolve(remote, event.ref)
    if resolved is None:
        return None
    branch = event.branch or ("" if event.tag else resolved.branch)
    return replace(subject, event=replace(event, sha=resolved.sha, branch=branch))


async def _lock_file(parts: Parts, remote: Remote, event: Event) -> _Locked | None:
    """Of a pull request, and of what is said of one, the base branch's: what somebody proposes does not decide what
    runs. A comment does not tell that branch, so there it is the default branch, which also decides about what is about
    no commit. None: there is no such branch.
    """
    from_base = event.trust is Trust.UNKNOWN
    if not from_base and event.type not in OF_DEFAULT_BRANCH:
        return _Locked(await parts.lock_files.at(remote, event.sha), event.sha, from_base=False)
    base = event.before
    if not base:
        resolved = await parts.repositories.resolve(remote, f"refs/heads/{event.base_branch or event.default_branch}")
        if resolved is None:
            return None
        base = resolved.sha
    return _Locked(await parts.lock_files.at(remote, base), base, from_base)


def _named(event: Event) -> str:
    if event.of_pull_request:
        return f"head of pull request {event.pr_number}"
    return f"branch or tag {event.branch or event.tag!r}"


def _updates_default_branch(event: Event) -> bool:
    return event.type is EventType.PUSH and event.branch == event.default_branch


def _registering(claim: Claim, subject: Subject, answer: LockAnswer) -> Registering | None:
    """What the default branch now has; also when it has nothing any more. A corrupt lock file changes nothing."""
    event = subject.event
    if not _updates_default_branch(event) or isinstance(answer, Corrupt):
        return None
    lock_sha256, workflows = (answer.sha256, answer.lock.workflows) if isinstance(answer, Found) else ("", ())
    context = RepositoryContext(subject.provider, subject.clone_url, event.default_branch, lock_sha256)
    repository = Repository(subject.routing_key, event.repo, context)
    return Registering(repository, event.sha, workflows, claim.received_at)


def _skips(event: Event, marker: str) -> Result:
    return _ends(event, "ignored", f"the head commit's message asks for no run: {marker}")


def _ends(event: Event, status: str, message: str = "") -> Result:
    return results.ends(status, message, repo=event.repo, ref=event.ref)
