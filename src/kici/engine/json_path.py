"""Paths into a payload: a small part of JSONPath, `$.issue.labels[0]["name"]`. No filters, no wildcards, no slices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kici.engine.errors import PathError
from kici.engine.globs import compile_regex
from kici.engine.lock_triggers import Expected, Regex

MAX_LENGTH = 512
_PART = re.compile(
    r"""\.(?P<name>[^\s.\[\]"'*?@()$]+) | \[(?P<index>\d{1,9})\] | \["(?P<double>(?:[^"\\]|\\.)*)"\]"""
    r""" | \['(?P<single>(?:[^'\\]|\\.)*)'\]""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\(.)")
ABSENT = object()
"""What `find` gives for a path that leads nowhere; null is a value."""


@lru_cache(maxsize=1024)
def parse(path: str) -> tuple[str | int, ...]:
    """Keys and places, outermost first. Raises `PathError`."""
    if len(path) > MAX_LENGTH or not path.startswith("$"):
        raise PathError(f"path {path!r} has to start with $ and may have {MAX_LENGTH} characters")
    parts: list[str | int] = []
    position = 1
    while position < len(path):
        found = _PART.match(path, position)
        if found is None:
            raise PathError(
                f'path {path!r} cannot be read at {path[position:]!r}: it is made of .name, [0] and ["any name"]'
            )
        if found["index"] is not None:
            parts.append(int(found["index"]))
        elif found["name"] is not None:
            parts.append(found["name"])
        else:
            quoted = found["double"] if found["double"] is not None else found["single"]
            parts.append(_ESCAPED.sub(r"\1", quoted))
        position = found.end()
    return tuple(parts)


def find(path: str, payload: Any) -> Any:
    """What stands at the path, or `ABSENT`."""
    for part in parse(path):
        if isinstance(part, int):
            if not isinstance(payload, (list, tuple)) or part >= len(payload):
                return ABSENT
            payload = payload[part]
        elif isinstance(payload, Mapping) and part in payload:
            payload = payload[part]
        else:
            return ABSENT
    return payload


def meets(expected: Expected, value: Any) -> bool:
    """Whether the value is what is expected, or one of several. True is not 1, and "1" is not 1."""
    if isinstance(expected, tuple):
        return any(meets(one, value) for one in expected)
    if isinstance(expected, Regex):
        return isinstance(value, str) and compile_regex(expected.regex).search(value) is not None
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, (int, float)):
        return isinstance(value, (int, float)) and expected == value
    return type(expected) is type(value) and expected == value
