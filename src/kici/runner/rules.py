"""Rules that are functions: asked in their order, up to the first that says no."""

from __future__ import annotations

from collections.abc import Sequence

from kici.engine.events import Event
from kici.engine.lockfile import LockRule
from kici.engine.rules import decide
from kici.runner.acts import Acts
from kici.runner.telling import sentence
from kici.sdk.rules import Rule


async def refusal(acts: Acts, index: int, rules: Sequence[Rule], locked: Sequence[LockRule], event: Event) -> str:
    """Why what they belong to need not run; empty if all say yes. The answers are told in the log of step `index`.

    A rule that raises says no.
    """
    for rule, lock in zip(rules, locked, strict=True):
        verdict = decide((lock,), event.changed_files)
        if verdict.warning:
            acts.say(index, verdict.warning)
        if not verdict.passed:
            return verdict.reason
        if rule.fn is None:
            continue
        try:
            passed = bool(await acts.ask(index, rule.fn)) is not rule.negated
        except Exception as error:  # noqa: BLE001 - it is the author's code
            return f"rule {rule.label!r} raised {sentence(error)}"
        if not passed:
            return f"rule {rule.label!r} says no"
    return ""
