"""What stands in paths and queries, checked: each refusal is a 400 with a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from kici.orchestrator.errors import Invalid

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIX = re.compile(r"[0-9a-f]{1,32}")


def uuid_of(text: str, what: str) -> str:
    """The id in its normal form."""
    lowered = text.lower()
    if not _UUID.fullmatch(lowered):
        raise Invalid(f"Invalid request: {text[:80]!r} is not a {what} id (36 characters, like 0190a7c2-…)")
    return lowered


def uuid_range(prefix: str) -> tuple[str, str]:
    """The first and the last id that begin like this, dashes or not."""
    digits = prefix.lower().replace("-", "")
    if not _PREFIX.fullmatch(digits):
        raise Invalid(f"Invalid request: {prefix[:80]!r} is not the beginning of an id")
    return tuple(
        "-".join((full[:8], full[8:12], full[12:16], full[16:20], full[20:]))
        for full in (digits.ljust(32, "0"), digits.ljust(32, "f"))
    )  # type: ignore[return-value]


def instant(text: str | None, name: str) -> datetime | None:
    """An ISO 8601 time; without a zone it is UTC."""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"Invalid request: {name}={text[:80]!r} is not an ISO 8601 time") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def one_of(text: str | None, allowed: Iterable[str], name: str) -> str | None:
    if text is not None and text not in (known := sorted(allowed)):
        raise Invalid(f"Invalid request: {name}={text[:80]!r} is not one of {', '.join(known)}")
    return text


def some_of(text: str | None, allowed: Iterable[str], name: str) -> tuple[str, ...] | None:
    """A list with commas."""
    if not text:
        return None
    known = set(allowed)
    return tuple(str(one_of(part.strip(), known, name)) for part in text.split(","))


def within(value: int, low: int, high: int, name: str) -> int:
    if not low <= value <= high:
        raise Invalid(f"Invalid request: {name}={value} is not between {low} and {high}")
    return value


def flag(text: str | None) -> bool:
    return text in {"1", "true"}
