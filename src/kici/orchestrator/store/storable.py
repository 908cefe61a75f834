"""What comes from outside, made fit for PostgreSQL: neither its text nor its JSON may hold the character NUL."""

from __future__ import annotations

from typing import Any

import msgspec


def text(value: str) -> str:
    return value.replace("\x00", "\ufffd")


def json(value: Any) -> Any:
    """For a `jsonb` column; encoded here, once."""
    encoded = msgspec.json.encode(value)
    if b"\\u0000" not in encoded:
        return msgspec.Raw(encoded)
    return _without_nul(msgspec.json.decode(encoded))


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return text(value)
        case list():
            return [_without_nul(item) for item in value]
        case dict():
            return {text(key): _without_nul(item) for key, item in value.items()}
    return value
