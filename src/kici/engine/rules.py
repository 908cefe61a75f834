"""Rules that need no code to run: whether what changed lets a workflow, a job or a step run."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kici.engine.lockfile import LockRule
from kici.engine.patterns import paths_match

UNKNOWN = "it is not known which files changed, so everything counts as changed"


class Verdict(Struct, frozen=True):
    passed: bool
    reason: str = ""
    """Of one that has not passed: what to record of the thing that is skipped."""
    warning: str = ""


def decide(rules: Iterable[LockRule], changed: Iterable[str] | None) -> Verdict:
    """Ask those of the rules that have `changed`; the first that says no decides. Functions are not asked.

    `changed` None = nobody knows: the rules let pass, with a warning. Nothing changed is something else: then no rule
    that wants a change passes.
    """
    static = [rule for rule in rules if rule.changed is not None]
    if not static:
        return Verdict(True)
    if changed is None:
        labels = ", ".join(repr(rule.label) for rule in static)
        return Verdict(True, warning=f"{'rule' if len(static) == 1 else 'rules'} {labels}: {UNKNOWN}")
    files = tuple(changed)
    for rule in static:
        if paths_match(rule.changed or (), files) is rule.negated:
            return Verdict(False, f"rule {rule.label!r}: {_why(rule, files)}")
    return Verdict(True)


def _why(rule: LockRule, files: tuple[str, ...]) -> str:
    patterns = ", ".join(rule.changed or ())
    if rule.negated:
        return f"a changed file matches {patterns}"
    return f"no changed file matches {patterns}" if files else f"nothing changed, so nothing matches {patterns}"
