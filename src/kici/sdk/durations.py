"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

Duration = str | int | float | timedelta
"""`"90s"`, `"20m"`, `"1h30m"`, `"500ms"`, a `timedelta`, or a number of seconds."""

LONGEST_MS = 366 * 24 * 3_600_000
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(value: Duration) -> int:
    """Whole milliseconds, at least 1 and at most a year. Raises `ValueError` with a sentence, whatever is wrong."""
    if isinstance(value, timedelta):
        found = value.total_seconds() * 1_000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found = value * 1_000
    elif isinstance(value, str):
        found = _parse(value)
    else:
        raise ValueError(f'{value!r} is not a duration: write "90s", "1h30m", a timedelta or seconds')  # noqa: TRY004
    if not 1 <= found <= LONGEST_MS:  # also refuses nan
        raise ValueError(f"{value!r} is not a duration between a millisecond and a year")
    return round(found)


def _parse(text: str) -> float:
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f'{text!r} is not a duration: write "90s", "20m", "1h30m" (units ms, s, m, h, d)')
    return sum(float(number) * _UNIT_MS[unit] for number, unit in parts)
