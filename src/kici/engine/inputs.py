"""Typed inputs: the same answer for the API, the pipeline, `kici runs start` and `kici run local`.

Inputs come as text (`--input count=3`) or as JSON values. They go on as text, because templates take text; a step gets
them typed by `ctx.inputs_as`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from kici.engine.errors import EngineError, InputError
from kici.engine.events import Event
from kici.engine.globs import compile_regex
from kici.engine.lock_triggers import Inputs, LockInput, Trigger
from kici.nearest import nearest

MAX_TEXT = 65_536
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def declared(trigger: Trigger) -> Inputs | None:
    """None: the trigger takes whatever comes, as text."""
    return getattr(trigger, "inputs", None)


def applied(trigger: Trigger, event: Event) -> Event:
    """The event with what the trigger makes of its inputs: checked, in one spelling, with the defaults.

    Raises `InputError`.
    """
    wanted = declared(trigger)
    return event if wanted is None else replace(event, inputs=texts(coerce(wanted, event.inputs)))


def coerce(wanted: Inputs, given: Mapping[str, Any], *, others: bool = False) -> dict[str, Any]:
    """Every input's value, its default if it is not given. Raises `InputError` with all that is wrong.

    With `others` names that are not among the inputs are left out instead of refused.
    """
    problems = [] if others else [_unknown(name, wanted) for name in given if name not in wanted]
    values: dict[str, Any] = {}
    for name, one in wanted.items():
        try:
            values[name] = _value(name, one, given)
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("; ".join(problems))
    return values


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Text as it is, null as none, everything else as JSON writes it."""
    return {name: as_text(value) for name, value in values.items()}


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def check(name: str, one: LockInput, value: Any) -> None:
    """Raise `InputError` if this value, of a JSON type, is not what the input takes."""
    if value is None:
        if not one.nullable:
            raise InputError(f"{name} is null; it is {_what(one)}")
        return
    right = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
    }
    if not right.get(one.type, False):
        raise InputError(f"{name} is {_shown(value)}; it is {_what(one)}")
    if one.choices and value not in one.choices:
        raise InputError(f"{name} is {_shown(value)}{nearest(value, map(str, one.choices))}; it is {_what(one)}")
    for problem in _bounds(one, value):
        raise InputError(f"{name} is {_shown(value)}; it {problem}")


def problems(wanted: Inputs) -> Iterable[str]:
    """What is wrong with the inputs of a lock file."""
    for name, one in wanted.items():
        if one.type not in _TYPES:
            yield f"input {name!r} has the type {one.type!r}; it is one of {', '.join(_TYPES)}"
            continue
        try:
            if one.pattern is not None:
                compile_regex(one.pattern)
            if not one.required:
                check(f"the default of input {name!r}", one, one.default)
        except EngineError as error:
            yield f"input {name!r}: {error}"


def _value(name: str, one: LockInput, given: Mapping[str, Any]) -> Any:
    subject = f"input {name!r}"
    if name not in given:
        if one.required:
            raise InputError(f"{subject} is missing: it is {_what(one)}")
        return one.default
    value = given[name]
    if isinstance(value, str):
        value = _from_text(subject, one, value)
    elif one.type == "string" and isinstance(value, (bool, int, float)):
        value = as_text(value)
    elif one.type == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    check(subject, one, value)
    return value


def _from_text(subject: str, one: LockInput, text: str) -> Any:
    if len(text) > MAX_TEXT:
        raise InputError(f"{subject} has {len(text):,} characters; the limit is {MAX_TEXT:,}")
    if not text and one.nullable:
        return None
    word = text.strip()
    if one.type == "boolean" and word.lower() in _TRUE | _FALSE:
        return word.lower() in _TRUE
    if one.type == "integer" and _INTEGER.fullmatch(word) and -(2**63) <= int(word) < 2**63:
        return int(word)
    if one.type == "number":
        try:
            return float(word)
        except ValueError:
            return text
    return text


def _bounds(one: LockInput, value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if one.min_length is not None and len(value) < one.min_length:
            yield f"has at least {one.min_length} characters"
        if one.max_length is not None and len(value) > one.max_length:
            yield f"has at most {one.max_length} characters"
        if one.pattern is not None and compile_regex(one.pattern).search(value) is None:
            yield f"matches /{one.pattern}/"
        return
    if one.ge is not None and value < one.ge:
        yield f"is at least {_plain(one.ge)}"
    if one.gt is not None and value <= one.gt:
        yield f"is more than {_plain(one.gt)}"
    if one.le is not None and value > one.le:
        yield f"is at most {_plain(one.le)}"
    if one.lt is not None and value >= one.lt:
        yield f"is less than {_plain(one.lt)}"
    if one.multiple_of is not None and value % one.multiple_of:
        yield f"is a multiple of {_plain(one.multiple_of)}"


def _unknown(name: str, wanted: Inputs) -> str:
    there_are = f"there are {', '.join(wanted)}" if wanted else "it takes none"
    return f"there is no input {name!r}{nearest(name, wanted)}; {there_are}"


def _what(one: LockInput) -> str:
    if one.choices:
        return f"one of {', '.join(map(str, one.choices))}"
    return _TYPES[one.type]


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else as_text(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


def _plain(bound: float) -> str:
    return f"{bound:g}" if abs(bound) < 1e6 else str(int(bound) if float(bound).is_integer() else bound)
