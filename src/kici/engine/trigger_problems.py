"""What the schema of the lock file cannot say about triggers.

Time zones are looked up where the workflow is compiled: an orchestrator may have older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kici.engine import cron, inputs, json_path, patterns
from kici.engine.errors import EngineError
from kici.engine.globs import compile_regex
from kici.engine.lock_triggers import Expected, Pattern, Regex, ScheduleTrigger, Trigger

_OF_PATTERNS = ("branches", "paths", "patterns", "target", "source", "contexts", "body_match")
"""Options that are lists of patterns; `source` of some triggers is a list of words, which are good patterns too."""


def problems(triggers: Sequence[Trigger]) -> Iterator[str]:
    for trigger in triggers:
        for pattern in _patterns(trigger):
            yield from _refusal(partial(patterns.check, pattern), "a trigger")
        for option in ("match", "not_"):
            for path, expected in getattr(trigger, option, {}).items():
                yield from _refusal(partial(json_path.parse, path), f"a trigger's {option}")
                for regex in _regexes(expected):
                    yield from _refusal(partial(compile_regex, regex), f"a trigger's {option} {path}")
        if isinstance(trigger, ScheduleTrigger):
            yield from _refusal(partial(cron.parse, trigger.cron), "a schedule")
            for name, one in (trigger.inputs or {}).items():
                if one.required:
                    yield f"a schedule: input {name!r} has no default, and nobody gives it to a schedule"
        yield from inputs.problems(inputs.declared(trigger) or {})
    timers = [(one.cron, one.tz) for one in triggers if isinstance(one, ScheduleTrigger)]
    for timer in sorted({timer for timer in timers if timers.count(timer) > 1}):
        yield f"two schedules are {timer[0]!r} in {timer[1]}: leave one out"


def _patterns(trigger: Trigger) -> Iterator[Pattern]:
    for name in _OF_PATTERNS:
        value = getattr(trigger, name, ())
        if isinstance(value, tuple):
            yield from value


def _regexes(expected: Expected) -> Iterator[str]:
    for one in expected if isinstance(expected, tuple) else (expected,):
        if isinstance(one, Regex):
            yield one.regex


def _refusal(check: Callable[[], object], where: str) -> Iterator[str]:
    try:
        check()
    except EngineError as error:
        yield f"{where}: {error}"
