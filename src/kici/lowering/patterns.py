"""Patterns: regular expressions of Python → of RE2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kici.engine.lockfile import Pattern, Regex
from kici.sdk.problems import Location, refuse
from kici.sdk.values import Pattern as SdkPattern

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


def lowered_patterns(patterns: Iterable[SdkPattern], subject: str, where: Location) -> tuple[Pattern, ...]:
    return tuple(one if isinstance(one, str) else _regex(one, subject, where) for one in patterns)


def _regex(pattern: re.Pattern[str], subject: str, where: Location) -> Regex:
    if pattern.flags & re.VERBOSE:
        refuse(subject, f"the regular expression {pattern.pattern!r} uses re.VERBOSE, which RE2 has not", where)
    flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    written = pattern.pattern
    return Regex(f"(?{flags}){written}" if flags and not written.startswith(f"(?{flags})") else written)
