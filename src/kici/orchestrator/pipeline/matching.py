"""Which workflows an event starts, and in words why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from kici.engine import triggers
from kici.engine.events import Event
from kici.engine.lockfile import LockWorkflow, Trigger
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


def match_all(workflows: Iterable[LockWorkflow], event: Event, own: Mapping[str, Event]) -> Matching:
    """`own`: the event as a workflow sees it, by name; for others it is `event`."""
    decided = [Matched(workflow, triggers.match(workflow, own.get(workflow.name, event))) for workflow in workflows]
    matched = [one for one in decided if one.decision.matched]
    if matched:
        remarks = [f"{one.workflow.name}: {warning}" for one in matched for warning in one.decision.warnings]
    else:
        remarks = [f"{one.workflow.name}: {_why_not(one.decision, event)}" for one in decided]
    return Matching(matched, remarks[:MAX_SENTENCES])


def _why_not(decision: Decision, event: Event) -> str:
    failed = [check for check in decision.checks if not check.passed and check.check != "event type"]
    if not failed:
        return f"it has no trigger for {event.type}" if decision.checks else decision.summary
    why = "; ".join(f"{check.check} {check.value!r} is not among {check.pattern}" for check in failed[:3])
    by_files = any(check.check == "paths" for check in failed)
    return f"{why}; {decision.changed}" if by_files and decision.changed else why
