"""Sizes of memory as people write them."""

from __future__ import annotations

import re

Size = str | int
"""`"512m"`, `"4g"`, `"1.5g"` (units k, m, g, each 1,024 times the one before), or a number of bytes."""

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kmg])", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3}


def size_bytes(value: Size) -> int:
    """Whole bytes, rounded down. Raises `ValueError` with a sentence, whatever is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{value!r} is not a size: write "512m" or "4g" (units k, m, g), or a number of bytes')
    return int(float(found[1]) * _UNITS[found[2].lower()])
