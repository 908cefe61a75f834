"""Events that are about no commit: deliveries of generic sources, what workflows emit, the ends of workflows and jobs,
and whatever `webhook(…)` asks for. They start what default branches have registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from kici.engine.events import Event, EventType
from kici.engine.lock_triggers import (
    GenericWebhookTrigger,
    JobCompleteTrigger,
    KiciEventTrigger,
    LifecycleTrigger,
    Trigger,
    WebhookTrigger,
    WorkflowCompleteTrigger,
)
from kici.engine.trigger_checks import COMPLETIONS
from kici.orchestrator.pipeline import results
from kici.orchestrator.pipeline.emitted import MAX_CHAIN_DEPTH, Emitted
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.repository_events import plan_matching
from kici.orchestrator.pipeline.results import Planned, Result
from kici.orchestrator.pipeline.subjects import Subject, source_of
from kici.orchestrator.store import registrations
from kici.orchestrator.store.caused import Cause
from kici.orchestrator.store.completions import Completion
from kici.orchestrator.store.event_claims import Claim, Ended
from kici.orchestrator.store.registrations import Registration


async def handle(parts: Parts, claim: Claim, event: Event) -> Result:
    """What asks for the event by its kind, and what asks for it by its sender's name."""
    found = await _started_by(parts, claim, event)
    if event.type is EventType.WEBHOOK:
        return found
    return together(found, await webhooks(parts, claim, event))


async def webhooks(parts: Parts, claim: Claim, event: Event) -> Result:
    """What has `webhook(…)` for a delivery, whatever else becomes of that. Where the event was comes along as
    `source_repo`; nothing of it is checked out."""
    delivered = Event(
        type=EventType.WEBHOOK,
        action=event.action,
        source=event.source,
        source_repo=event.repo or event.source_repo,
        forge_event=event.forge_event,
        actor=event.actor,
        payload=event.payload,
    )
    return await _started_by(parts, claim, delivered) if event.forge_event else Result(Ended(status="processed"))


async def emitted(parts: Parts, claim: Claim) -> Result:
    """What a step sent with `ctx.emit`."""
    sent = msgspec.json.decode(claim.body or b"", type=Emitted)
    if sent.chain_depth > MAX_CHAIN_DEPTH:
        return _circle(sent.repo)
    event = Event(
        type=EventType.KICI_EVENT,
        event_name=sent.name,
        source_repo=sent.repo,
        workflow=sent.workflow,
        job=sent.job,
        chain_depth=sent.chain_depth,
        payload=sent.payload,
    )
    cause = Cause(claim.routing_key, sent.repo, sent.workflow)
    return replace(await _started_by(parts, claim, event), cause=cause)


async def completed(parts: Parts, claim: Claim) -> Result:
    """A run or a job that ended."""
    ended = msgspec.json.decode(claim.body or b"", type=Completion)
    if ended.chain_depth > MAX_CHAIN_DEPTH:
        return _circle(ended.repo)
    event = Event(
        type=EventType(claim.event_name),
        source_repo=ended.repo,
        workflow=ended.workflow,
        job=ended.job,
        state=ended.status,
        commit=ended.sha,
        chain_depth=ended.chain_depth,
        payload=ended.payload,
    )
    found = await _started_by(parts, claim, event)
    if ended.chain_depth == 1:
        return found
    return replace(found, cause=Cause(claim.routing_key, ended.repo, ended.workflow))


def _circle(repo: str) -> Result:
    return results.ends("failed", f"{MAX_CHAIN_DEPTH} events led to this one: is it a circle?", repo=repo)


def together(one: Result, other: Result) -> Result:
    """The first one's ending, with the runs of both; the other's remarks only if something came of it."""
    if not other.runs and other.ended.status == "processed":
        return one
    warnings = [*one.ended.warnings, *other.ended.warnings, *filter(None, [other.ended.message])]
    status = "processed" if other.runs and not one.runs and not one.ended.message else one.ended.status
    ended = replace(one.ended, warnings=warnings, status=status)
    return results.with_runs(replace(one, ended=ended), [*one.runs, *other.runs])


async def _started_by(parts: Parts, claim: Claim, event: Event) -> Result:
    """A repository that two sources tell of starts each workflow once; one whose source was removed starts none."""
    async with parts.pool.acquire() as db:
        kinds = (event.type, "lifecycle") if event.type in COMPLETIONS else (event.type,)
        registered = await registrations.with_trigger(db, *map(str, kinds))
    runs: list[Planned] = []
    remarks: list[str] = []
    refused: list[str] = []
    seen: set[tuple[str, str]] = set()
    for one in _listening(registered, event):
        key = (one.repository.repo, one.workflow.name)
        if key in seen or await source_of(parts.sources, one.repository.routing_key) is None:
            continue
        seen.add(key)
        place = LockPlace(one.commit_sha, one.repository.context.lock_sha256)
        planned = plan_matching(parts, claim, _subject(one, event), (one.workflow,), place)
        runs += planned.runs
        remarks += [f"{one.repository.repo}: {remark}" for remark in planned.ended.warnings]
        refused += [f"{one.repository.repo}: {planned.ended.message}"] if planned.ended.message else []
    if not seen:
        remarks = [f"no workflow on a default branch has {_wanted(event)}"]
    ended = Ended(status="processed", warnings=[*remarks, *refused], repo=event.source_repo)
    return results.with_runs(Result(ended), runs)


def _listening(registered: Sequence[Registration], event: Event) -> Iterator[Registration]:
    """Those that name the event; their other filters are said as remarks."""
    return (one for one in registered if any(_names(trigger, event) for trigger in one.workflow.triggers))


def _names(trigger: Trigger, event: Event) -> bool:
    match trigger:
        case GenericWebhookTrigger():
            return event.type is EventType.GENERIC_WEBHOOK and trigger.source == event.source
        case KiciEventTrigger():
            return event.type is EventType.KICI_EVENT and trigger.name == event.event_name
        case WebhookTrigger():
            return event.type is EventType.WEBHOOK and event.forge_event in trigger.events
        case WorkflowCompleteTrigger():
            return event.type is EventType.WORKFLOW_COMPLETE and event.workflow in (trigger.name or (event.workflow,))
        case JobCompleteTrigger():
            return event.type is EventType.JOB_COMPLETE and event.workflow in (trigger.workflow or (event.workflow,))
        case LifecycleTrigger():
            return event.type in COMPLETIONS
    return False


def _wanted(event: Event) -> str:
    name = {EventType.GENERIC_WEBHOOK: event.source, EventType.KICI_EVENT: event.event_name}
    name |= dict.fromkeys(COMPLETIONS, event.workflow)
    return f"{event.type}({name.get(event.type, event.forge_event)!r})"


def _subject(registration: Registration, event: Event) -> Subject:
    """The commit is the one that was registered: definition and code belong together."""
    context = registration.repository.context
    return Subject(
        event=replace(
            event,
            repo=registration.repository.repo,
            branch=context.default_branch,
            default_branch=context.default_branch,
            sha=registration.commit_sha,
        ),
        clone_url=context.clone_url,
        provider=context.provider,
        routing_key=registration.repository.routing_key,
    )
