"""What PostgreSQL takes: text from agents may hold the character NUL, which neither text nor jsonb can."""

from __future__ import annotations

from typing import Any

LONGEST = 10_000
"""Characters of an error message."""


def storable(text: str) -> str:
    return text[:LONGEST].replace("\x00", "\ufffd")


def storable_json(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\x00", "\ufffd")
        case list() | tuple():
            return [storable_json(item) for item in value]
        case dict():
            return {storable_json(key): storable_json(item) for key, item in value.items()}
    return value
