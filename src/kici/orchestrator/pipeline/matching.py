"""Which workflows an event starts, and in words why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from kici.engine import triggers
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockWorkflow, PrTrigger, PushTrigger, Trigger
from kici.engine.triggers import Decision

MAX_SENTENCES = 20


class Matched(Struct, frozen=True):
    workflow: LockWorkflow
    decision: Decision

    @property
    def trigger(self) -> Trigger:
        """The one that matched."""
        assert self.decision.trigger is not None
        return self.workflow.triggers[self.decision.trigger]


class Matching(Struct, frozen=True):
    matched: Sequence[Matched]
    remarks: Sequence[str]
    """Warnings of what matched; if nothing did, why each workflow did not."""


def match_all(workflows: Iterable[LockWorkflow], event: Event) -> Matching:
    decided = [Matched(workflow, triggers.match(workflow, event)) for workflow in workflows]
    matched = [one for one in decided if one.decision.matched]
    if matched:
        remarks = [f"{one.workflow.name}: {warning}" for one in matched for warning in one.decision.warnings]
    else:
        remarks = [f"{one.workflow.name}: {_why_not(one.decision, event)}" for one in decided]
    return Matching(matched, remarks[:MAX_SENTENCES])


def wants_changed_files(workflows: Iterable[LockWorkflow], event: Event) -> bool:
    """Whether a path filter will be asked about this event."""
    wanted = {EventType.PUSH: PushTrigger, EventType.PULL_REQUEST: PrTrigger}.get(event.type)
    return wanted is not None and any(
        isinstance(trigger, wanted) and bool(trigger.paths) for workflow in workflows for trigger in workflow.triggers
    )


def _why_not(decision: Decision, event: Event) -> str:
    failed = [check for check in decision.checks if not check.passed and check.check != "event type"]
    if not failed:
        return f"it has no trigger for {event.type}" if decision.checks else decision.summary
    return "; ".join(f"{check.check} {check.value!r} is not among {check.pattern}" for check in failed[:3])
