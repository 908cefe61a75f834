"""Which agents may run a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from kici.sdk.problems import refuse
from kici.sdk.values import Pattern, Patterns, checked_patterns

RunsOn: TypeAlias = "str | re.Pattern[str] | Labels | Sequence[str | re.Pattern[str]]"


class Labels(Struct, frozen=True):
    required: tuple[Pattern, ...]
    """For each of these the agent has a label."""
    excluded: tuple[Pattern, ...] = ()
    """For none of these."""


def labels(*required: Pattern, not_: Patterns = ()) -> Labels:
    """Agents that have all the required labels and none of `not_`: text, globs, or regular expressions.

    `"linux"`, `"arm64"` and so on are short for `kici:os:linux`, `kici:arch:arm64`.
    """
    return _sorted_out("labels(…)", checked_patterns("labels(…)", "label", required), not_)


def checked_runs_on(subject: str, value: object) -> Labels:
    if value is None:
        refuse(subject, 'it does not say where it runs: write for example runs_on="linux"')
        return Labels(("?",))
    found = value if isinstance(value, Labels) else _sorted_out(subject, checked_patterns(subject, "runs_on", value))
    if not found.required and not found.excluded:
        refuse(subject, 'runs_on is empty: write for example runs_on="linux"')
        return Labels(("?",))
    if not found.required:
        refuse(subject, 'runs_on says only what to avoid: name a label that the agent has, for example "linux"')
        return Labels(("?",))
    return found


def _sorted_out(subject: str, patterns: Sequence[Pattern], not_: Patterns = ()) -> Labels:
    excluded = [pattern[1:] for pattern in patterns if isinstance(pattern, str) and _excludes(pattern)]
    return Labels(
        tuple(pattern for pattern in patterns if not _excludes(pattern)),
        (*excluded, *checked_patterns(subject, "not_", not_)),
    )


def _excludes(pattern: Pattern) -> bool:
    return isinstance(pattern, str) and pattern.startswith("!") and not pattern.startswith("!(")
