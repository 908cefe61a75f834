"""Which values can be hidden in logs."""

from __future__ import annotations

from kici.wire.runner import MAX_SECRET_CHARS, MIN_SECRET_BYTES


def check_can_be_hidden(value: str) -> None:
    """Raises `ValueError`, which never says the value."""
    size = len(value.encode(errors="replace"))
    if size < MIN_SECRET_BYTES:
        raise ValueError(
            f"a value of {size} bytes cannot be hidden: half of every log would go with it. A secret has at least"
            f" {MIN_SECRET_BYTES} bytes"
        )
    if len(value) > MAX_SECRET_CHARS:
        raise ValueError(f"a value of {len(value):,} characters cannot be hidden; the limit is {MAX_SECRET_CHARS:,}")
