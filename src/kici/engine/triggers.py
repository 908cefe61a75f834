"""Does an event start a workflow? The decision is kept with the run, so that anybody can see why."""

from __future__ import annotations

import re
from itertools import chain

from msgspec import Struct

from kici.engine import changed
from kici.engine.events import Event
from kici.engine.lock_triggers import RegisteredTrigger, Trigger
from kici.engine.lockfile import LockWorkflow
from kici.engine.trigger_checks import Check, checks_of, rules_of

__all__ = ["Check", "Decision", "match", "needs_registration", "skip_requested"]

_SKIP = re.compile(r"\[(?:skip ci|ci skip|no ci|skip kici|kici skip)\]", re.IGNORECASE)


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


def needs_registration(trigger: Trigger) -> bool:
    """Whether the trigger exists only once the workflow has reached the default branch. The others are looked up in
    the lock file at the event's own commit, or at the head of the branch that decides.
    """
    return isinstance(trigger, RegisteredTrigger)


def _checks(workflow: LockWorkflow, trigger: Trigger, event: Event) -> list[Check]:
    """Up to the first one that fails."""
    checks = []
    for check in chain(checks_of(workflow, trigger, event), rules_of(workflow, event)):
        checks.append(check)
        if not check.passed:
            break
    return checks


def _base(event: Event) -> tuple[str, str]:
    return changed.told(event), event.changed_base


def _name(trigger: Trigger) -> str:
    return str(trigger.__struct_config__.tag)
