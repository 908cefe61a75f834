"""Whether something runs at all: rules of workflows, jobs and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

from msgspec import Struct

from kici.sdk.problems import refuse
from kici.sdk.values import checked_globs, checked_name

if TYPE_CHECKING:
    from kici.sdk.context import Ctx

RuleFunction: TypeAlias = "Callable[[Ctx], object]"
"""`def` or `async def`; what it returns is taken as true or false. One that raises says no, and its error is shown."""


class Rule(Struct, frozen=True, eq=False):
    """Something that must be so. Make one by `rule`, `skip_unless`, `skip_if` or `changed`."""

    label: str
    """What the log and the run page say: `only on weekdays`."""
    fn: RuleFunction | None = None
    """Asked on the agent, before the first step. None if `changed` is given."""
    changed: tuple[str, ...] | None = None
    """Globs, decided without an agent."""
    negated: bool = False
    """The function must say no."""


RuleLike: TypeAlias = "Rule | RuleFunction"
"""A function stands for `rule(its name, function)`."""


class RuleDecorator(Protocol):
    def __call__(self, fn: RuleFunction, /) -> Rule: ...


@overload
def rule(fn: RuleFunction, /) -> Rule: ...
@overload
def rule(label: str, /) -> RuleDecorator: ...
@overload
def rule(label: str, fn: RuleFunction, /) -> Rule: ...
def rule(*given: Any) -> Any:
    """A rule: `@rule` or `@rule("label")` on a function of ctx, or `rule("label", function)`.

    What it belongs to runs only if all its rules say yes; otherwise it is skipped, with the label as the reason.
    """
    if len(given) == 1 and callable(given[0]):
        return _of(getattr(given[0], "__name__", "rule").replace("_", " "), given[0])
    if len(given) == 1:
        return lambda fn: _of(given[0], fn)
    if len(given) == 2:
        return _of(given[0], given[1])
    refuse("rule(…)", 'write @rule on a function of ctx, or rule("label", function)')
    return Rule("?", lambda ctx: True)


def skip_unless(label: str, fn: RuleFunction, /) -> Rule:
    """Runs only if the function says yes: another word for `rule(label, fn)`."""
    return _of(label, fn)


def skip_if(label: str, fn: RuleFunction, /) -> Rule:
    """Runs only if the function says no."""
    return _of(label, fn, negated=True)


def changed(*patterns: str) -> Rule:
    """Runs only if a changed file matches: `changed("src/**", "!**/*.md")`; `!` excludes.

    Decided before anything starts. What changed is told by git, from the base that `kici runs show` names; where nobody
    knows what changed, everything counts as changed.
    """
    subject = "changed(…)"
    globs = checked_globs(subject, "pattern", patterns)
    if not globs:
        refuse(subject, 'name at least one file or glob: changed("src/**")')
        globs = ("**",)
    return Rule(f"changed {', '.join(globs)}", changed=globs)


def checked_rules(subject: str, value: object) -> tuple[Rule, ...]:
    """One rule or several; functions become rules of their name."""
    several = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    found = []
    for one in several:
        if isinstance(one, Rule):
            found.append(one)
        elif one in (rule, changed, skip_if, skip_unless):
            refuse(subject, f"rules: {one.__name__} is a function of kici, call it: {one.__name__}(…)")
        elif callable(one):
            found.append(rule(one))
        else:
            refuse(subject, f'rules: {one!r} is no rule: write changed("src/**"), or rule("label", function)')
    return tuple(found)


def _of(label: object, fn: object, *, negated: bool = False) -> Rule:
    subject = f"rule {label!r}"
    if isinstance(fn, Rule):
        refuse(subject, "this is a rule already: use it as it is")
        return fn
    if not callable(fn):
        refuse(subject, f"{fn!r} is no function: write a function of ctx that returns True or False")
        return Rule("?", lambda ctx: True)
    return Rule(checked_name(subject, label), fn, negated=negated)
