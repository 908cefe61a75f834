"""The comparisons that each kind of trigger makes, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kici.engine import json_path
from kici.engine import lock_triggers as lock
from kici.engine.events import Event, EventType
from kici.engine.inputs import as_text
from kici.engine.lock_triggers import Expected, Pattern, Regex, Trigger
from kici.engine.lockfile import LockWorkflow
from kici.engine.patterns import matches, paths_match, show, text_matches
from kici.engine.rules import UNKNOWN, decide

EVENT_TYPES: dict[type[Trigger], EventType] = {
    lock.PushTrigger: EventType.PUSH,
    lock.TagTrigger: EventType.TAG,
    lock.PrTrigger: EventType.PULL_REQUEST,
    lock.CommentTrigger: EventType.COMMENT,
    lock.ReviewTrigger: EventType.REVIEW,
    lock.ReviewCommentTrigger: EventType.REVIEW_COMMENT,
    lock.ReleaseTrigger: EventType.RELEASE,
    lock.DispatchTrigger: EventType.DISPATCH,
    lock.CreateTrigger: EventType.CREATE,
    lock.DeleteTrigger: EventType.DELETE,
    lock.StatusTrigger: EventType.STATUS,
    lock.WorkflowRunTrigger: EventType.WORKFLOW_RUN,
    lock.ForkTrigger: EventType.FORK,
    lock.StarTrigger: EventType.STAR,
    lock.WatchTrigger: EventType.WATCH,
    lock.WebhookTrigger: EventType.WEBHOOK,
    lock.KiciEventTrigger: EventType.KICI_EVENT,
    lock.WorkflowCompleteTrigger: EventType.WORKFLOW_COMPLETE,
    lock.JobCompleteTrigger: EventType.JOB_COMPLETE,
    lock.GenericWebhookTrigger: EventType.GENERIC_WEBHOOK,
    lock.ScheduleTrigger: EventType.SCHEDULE,
    lock.ManualTrigger: EventType.MANUAL,
}
"""`lifecycle` is not here: it takes two types."""

COMPLETIONS = (EventType.WORKFLOW_COMPLETE, EventType.JOB_COMPLETE)


class Check(Struct, frozen=True, rename="camel"):
    """One comparison that was made."""

    check: str
    pattern: str
    value: str
    passed: bool
    reason: str = ""


def checks_of(workflow: LockWorkflow, trigger: Trigger, event: Event) -> Iterator[Check]:
    """Lazily: who stops at the first failure pays for no more."""
    if isinstance(trigger, lock.LifecycleTrigger):
        yield from _lifecycle(workflow, trigger, event)
        return
    wanted = EVENT_TYPES[type(trigger)]
    yield Check("event type", wanted, event.type, event.type is wanted)
    if event.type is not wanted:
        return
    match trigger:
        case lock.PushTrigger():
            yield _list("branch", trigger.branches, event.branch)
            yield _paths(trigger.paths, event)
        case lock.TagTrigger():
            yield _list("tag pattern", trigger.patterns, event.tag)
        case lock.PrTrigger():
            yield _one_of("action", trigger.events, event.action)
            yield _list("target branch", trigger.target, event.base_branch)
            yield _list("source branch", trigger.source, event.branch)
            yield _paths(trigger.paths, event)
        case lock.DispatchTrigger():
            yield _one_of("dispatch type", trigger.types, event.event_name)
        case lock.ManualTrigger():
            yield _one_of("workflow name", (workflow.name,), event.workflow)
        case lock.ScheduleTrigger():
            yield _one_of("workflow name", (workflow.name,), event.workflow)
            yield _one_of("cron", (trigger.cron,), event.event_name)
            yield _one_of("time zone", (trigger.tz,), event.tz)
        case lock.GenericWebhookTrigger():
            yield _one_of("source", (trigger.source,), event.source)
            yield _one_of("event type filter", trigger.events, event.event_name)
            yield from _payload(trigger.match, trigger.not_, event)
        case lock.KiciEventTrigger():
            yield _one_of("event name", (trigger.name,), event.event_name)
            yield _one_of("source repository", trigger.source, event.source_repo)
            yield from _payload(trigger.match, trigger.not_, event)
        case lock.WorkflowCompleteTrigger():
            yield from _other_than_itself(workflow, trigger.name, event)
            yield _one_of("status", trigger.status, event.state)
            yield _one_of("source repository", trigger.source, event.source_repo)
        case lock.JobCompleteTrigger():
            yield from _other_than_itself(workflow, trigger.workflow, event)
            yield _one_of("job", trigger.job, event.job)
            yield _one_of("status", trigger.status, event.state)
            yield _one_of("source repository", trigger.source, event.source_repo)
        case _:
            yield from _of_forge(trigger, event)


def rules_of(workflow: LockWorkflow, event: Event) -> Iterator[Check]:
    """Those of the workflow's rules that need no code. The others are asked in each job."""
    for rule in workflow.rules:
        if rule.changed is None:
            continue
        verdict = decide([rule], event.changed_files)
        reason = f"rule {rule.label!r}: {UNKNOWN}" if verdict.warning else ""
        pattern = f"not {', '.join(rule.changed)}" if rule.negated else ", ".join(rule.changed)
        yield Check("rule", pattern, _shown(event.changed_files), verdict.passed, reason)


def _of_forge(trigger: Trigger, event: Event) -> Iterator[Check]:
    match trigger:
        case lock.CommentTrigger():
            yield _one_of("action", trigger.actions, event.action)
            yield _one_of("comment on", trigger.source, "pr" if event.pr_number else "issue")
            yield _body(trigger.body_match, event.body)
        case lock.ReviewTrigger():
            yield _one_of("action", trigger.actions, event.action)
            yield _one_of("state", trigger.states, event.state)
        case lock.StatusTrigger():
            yield _list("context", trigger.contexts, event.event_name)
            yield _one_of("state", trigger.states, event.state)
        case lock.CreateTrigger() | lock.DeleteTrigger():
            yield _one_of("ref type", trigger.ref_types, event.ref_type)
            yield _list("ref", trigger.patterns, event.event_name)
        case lock.WorkflowRunTrigger():
            yield _one_of("action", trigger.actions, event.action)
            yield _one_of("workflow", trigger.workflows, event.event_name)
            yield _one_of("conclusion", trigger.conclusions, event.state)
        case lock.WebhookTrigger():
            yield _one_of("event", trigger.events, event.forge_event)
            yield _one_of("action", trigger.actions, event.action)
        case lock.ReviewCommentTrigger() | lock.ReleaseTrigger() | lock.StarTrigger() | lock.WatchTrigger():
            yield _one_of("action", trigger.actions, event.action)


def _lifecycle(workflow: LockWorkflow, trigger: lock.LifecycleTrigger, event: Event) -> Iterator[Check]:
    yield Check("event type", ", ".join(COMPLETIONS), event.type, event.type in COMPLETIONS)
    told = {str(event.type)}
    if event.type is EventType.JOB_COMPLETE and event.state not in ("success", "skipped", "cancelled"):
        told.add("job_failed")
    yield Check("event", ", ".join(trigger.events), ", ".join(sorted(told)), not told.isdisjoint(trigger.events))
    yield from _other_than_itself(workflow, (), event)
    yield _one_of("source repository", trigger.sources, event.source_repo)


def _other_than_itself(workflow: LockWorkflow, names: Sequence[str], event: Event) -> Iterator[Check]:
    """Without a name a workflow would start itself again and again."""
    if not names:
        itself = event.workflow == workflow.name and event.source_repo == event.repo
        yield Check("completed workflow", f"any but {workflow.name}", event.workflow, not itself)
    else:
        yield _one_of("completed workflow", names, event.workflow)


def _payload(wanted: Mapping[str, Expected], unwanted: Mapping[str, Expected], event: Event) -> Iterator[Check]:
    for path, expected in wanted.items():
        value = json_path.find(path, event.payload)
        passed = value is not json_path.ABSENT and json_path.meets(expected, value)
        yield Check(f"payload {path}", _expected(expected), _found(value), passed)
    for path, expected in unwanted.items():
        value = json_path.find(path, event.payload)
        passed = value is json_path.ABSENT or not json_path.meets(expected, value)
        yield Check(f"payload {path}", f"not {_expected(expected)}", _found(value), passed)


def _expected(expected: Expected) -> str:
    if isinstance(expected, tuple):
        return ", ".join(map(_expected, expected))
    return show(expected) if isinstance(expected, Regex) else _found(expected)


def _found(value: object) -> str:
    if value is json_path.ABSENT:
        return ""
    return _short("null" if value is None else as_text(value))


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _body(patterns: Sequence[Pattern], text: str) -> Check:
    return Check("comment", ", ".join(map(show, patterns)), _short(text), text_matches(patterns, text))


def _one_of(check: str, allowed: Sequence[str], value: str) -> Check:
    return Check(check, ", ".join(allowed), value, not allowed or value in allowed)


def _list(check: str, patterns: Sequence[Pattern], value: str) -> Check:
    return Check(check, ", ".join(map(show, patterns)), value, matches(patterns, value))


def _paths(patterns: Sequence[str], event: Event) -> Check:
    pattern = ", ".join(patterns)
    if not patterns:
        return Check("paths", pattern, "", True)
    if event.changed_files is None:
        why = f" ({event.changed_since})" if event.changed_since else ""
        reason = f"it is not known which files changed{why}, so the path filter lets the event pass"
        return Check("paths", pattern, "unknown", True, reason)
    return Check("paths", pattern, _shown(event.changed_files), paths_match(patterns, event.changed_files))


def _shown(changed: Sequence[str] | None) -> str:
    if changed is None:
        return "unknown"
    return ", ".join(changed[:5]) + (" …" if len(changed) > 5 else "")
