"""Does an event start a workflow? The decision is kept with the run, so that anybody can see why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from kici.engine import changed
from kici.engine.events import Event, EventType
from kici.engine.lockfile import (
    DispatchTrigger,
    GenericWebhookTrigger,
    LockWorkflow,
    ManualTrigger,
    Pattern,
    PrTrigger,
    PushTrigger,
    TagTrigger,
    Trigger,
)
from kici.engine.patterns import matches, paths_match, show
from kici.engine.rules import UNKNOWN, decide

_SKIP = re.compile(r"\[(?:skip ci|ci skip|no ci|skip kici|kici skip)\]", re.IGNORECASE)
_EVENT_TYPES: dict[type[Trigger], EventType] = {
    PushTrigger: EventType.PUSH,
    TagTrigger: EventType.TAG,
    PrTrigger: EventType.PULL_REQUEST,
    DispatchTrigger: EventType.DISPATCH,
    GenericWebhookTrigger: EventType.GENERIC_WEBHOOK,
    ManualTrigger: EventType.MANUAL,
}


class Check(Struct, frozen=True, rename="camel"):
    """One comparison that was made."""

    check: str
    pattern: str
    value: str
    passed: bool
    reason: str = ""


class Decision(Struct, frozen=True, rename="camel"):
    workflow: str
    matched: bool
    summary: str
    trigger: int | None = None
    """Position of the first trigger that matched."""
    checks: tuple[Check, ...] = ()
    """Of the trigger that matched; of all of them if none did."""
    warnings: tuple[str, ...] = ()
    changed: str = ""
    """How many files counted as changed, and since which commit; empty if nothing has asked."""
    changed_base: str = ""
    """That commit; empty if it is not known which files changed."""


def match(workflow: LockWorkflow, event: Event) -> Decision:
    """The first trigger in the file's order that takes the event decides. A workflow without triggers never starts."""
    if not workflow.triggers:
        return Decision(workflow.name, False, "No triggers defined")
    if event.deleted:
        return Decision(workflow.name, False, "The branch or tag was deleted: there is no commit to run")
    failed: list[Check] = []
    for index, trigger in enumerate(workflow.triggers):
        checks = _checks(workflow, trigger, event)
        if all(check.passed for check in checks):
            warnings = tuple(check.reason for check in checks if check.reason)
            summary = f"Matched trigger {index + 1} ({_name(trigger)})"
            return Decision(workflow.name, True, summary, index, tuple(checks), warnings, *_base(event))
        failed.extend(checks)
    return Decision(workflow.name, False, "No triggers matched", None, tuple(failed), (), *_base(event))


def skip_requested(message: str) -> str | None:
    """The marker in a commit message that asks for no run (`[skip ci]` and its usual spellings), or None."""
    found = _SKIP.search(message)
    return found[0] if found else None


def _checks(workflow: LockWorkflow, trigger: Trigger, event: Event) -> list[Check]:
    """Up to the first one that fails."""
    checks = []
    for check in _all_checks(workflow, trigger, event):
        checks.append(check)
        if not check.passed:
            break
    return checks


def _all_checks(workflow: LockWorkflow, trigger: Trigger, event: Event) -> list[Check]:
    wanted = _EVENT_TYPES[type(trigger)]
    checks = [Check("event type", wanted, event.type, event.type is wanted)]
    if event.type is not wanted:
        return checks
    match trigger:
        case PushTrigger():
            checks += [_list("branch", trigger.branches, event.branch), _paths(trigger.paths, event)]
        case TagTrigger():
            checks += [_list("tag pattern", trigger.patterns, event.tag)]
        case PrTrigger():
            checks += [
                _one_of("action", trigger.events, event.action),
                _list("target branch", trigger.target, event.base_branch),
                _list("source branch", trigger.source, event.branch),
                _paths(trigger.paths, event),
            ]
        case DispatchTrigger():
            checks += [_one_of("dispatch type", trigger.types, event.event_name)]
        case GenericWebhookTrigger():
            checks += [
                _one_of("source", (trigger.source,), event.source),
                _one_of("event type filter", trigger.events, event.event_name),
            ]
        case ManualTrigger():
            checks += [_one_of("workflow name", (workflow.name,), event.workflow)]
    return [*checks, *_rules(workflow, event)]


def _rules(workflow: LockWorkflow, event: Event) -> Iterator[Check]:
    """Those of the workflow's rules that need no code. The others are asked in each job."""
    for rule in workflow.rules:
        if rule.changed is None:
            continue
        verdict = decide([rule], event.changed_files)
        reason = f"rule {rule.label!r}: {UNKNOWN}" if verdict.warning else ""
        pattern = f"not {', '.join(rule.changed)}" if rule.negated else ", ".join(rule.changed)
        yield Check("rule", pattern, _shown(event.changed_files), verdict.passed, reason)


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


def _base(event: Event) -> tuple[str, str]:
    return changed.told(event), event.changed_base


def _name(trigger: Trigger) -> str:
    return str(trigger.__struct_config__.tag)
