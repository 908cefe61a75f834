"""Cron expressions: five fields, as POSIX and crontab(5) have them. Reading and checking; nothing here has a clock."""

from __future__ import annotations

import re
from calendar import monthrange

from msgspec import Struct

from kici.engine.errors import CronError
from kici.nearest import nearest

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ITEM = re.compile(r"(?P<any>\*)|(?P<first>[A-Za-z0-9]{1,3})(?:-(?P<last>[A-Za-z0-9]{1,3}))?")
_LEAP_YEAR = 2024


class _Field(Struct, frozen=True):
    title: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    """The first one stands for `first`."""


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


class Cron(Struct, frozen=True):
    """The minutes at which it fires. If neither days nor weekdays are `*`, a day of either is enough."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 = Sunday."""
    any_day: bool
    any_weekday: bool


def parse(expression: str) -> Cron:
    """Raises `CronError` for what is none, and for one that never fires."""
    text = _SHORT.get(expression.strip().lower(), expression)
    if text.startswith("@"):
        raise CronError(f"cron {expression!r} is not one of {', '.join(_SHORT)}")
    written = text.split()
    if len(written) != len(_FIELDS):
        titles = ", ".join(field.title for field in _FIELDS)
        raise CronError(f"cron {expression!r} has {len(written)} fields; it takes five: {titles}")
    minutes, hours, days, months, weekdays = (
        _field(expression, field, one) for field, one in zip(_FIELDS, written, strict=True)
    )
    found = Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=written[2].startswith("*"),
        any_weekday=written[4].startswith("*"),
    )
    if found.any_weekday and not any(min(days) <= monthrange(_LEAP_YEAR, month)[1] for month in months):
        raise CronError(f"cron {expression!r} never fires: no month of it has a day {min(days)}")
    return found


def check_zone(name: str) -> None:
    """Raise `CronError` if this is no time zone of the IANA database."""
    import zoneinfo

    if name == "UTC":
        return
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = zoneinfo.available_timezones()
        if not known:
            raise CronError(
                f"time zone {name!r} cannot be looked up: this machine has no time zones; install the package tzdata"
            ) from error
        raise CronError(
            f"there is no time zone {name!r}{nearest(name, known)}: write one such as Europe/Berlin"
        ) from error


def _field(expression: str, field: _Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for item in text.split(","):
        span, slash, step = item.partition("/")
        found = _ITEM.fullmatch(span)
        if found is None or (slash and not (step.isascii() and step.isdigit() and 0 < int(step[:9]) <= field.last)):
            raise CronError(f"cron {expression!r}: {field.title} {item!r} cannot be read: write *, 5, 1-5, 1,3 or */15")
        if found["any"]:
            first, last = field.first, 6 if field.names is _DAYS else field.last
        else:
            first = last = _value(expression, field, found["first"])
            if found["last"] is not None:
                last = _value(expression, field, found["last"])
                if field.names is _DAYS and last == 0:
                    last = 7
            elif slash:
                raise CronError(
                    f"cron {expression!r}: {field.title} {item!r} is a step without a range: write {span}-{field.last}"
                    f"/{step}"
                )
        if first > last:
            raise CronError(f"cron {expression!r}: {field.title} {item!r} ends before it begins")
        values.update(range(first, last + 1, int(step) if slash else 1))
    return frozenset(values)


def _value(expression: str, field: _Field, text: str) -> int:
    if text.upper() in field.names:
        return field.names.index(text.upper()) + field.first
    if not text.isdigit() or not field.first <= int(text) <= field.last:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        raise CronError(f"cron {expression!r}: {field.title} {text!r} is not {field.first} to {field.last}{names}")
    return int(text)
