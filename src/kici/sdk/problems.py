"""What is wrong with a definition, and where its author wrote it.

A factory that meets something wrong calls `refuse`. Usually that raises `DefinitionError`; while the compiler collects,
it is noted instead and the factory goes on with a default, so that one compile shows all errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from kici.sdk.errors import DefinitionError

_SDK = __name__.rpartition(".")[0]
_collected: list[Refusal] | None = None


class Location(Struct, frozen=True):
    file: str
    """As Python names it: absolute, or what the importer said."""
    line: int
    """1-based."""


class Refusal(Struct, frozen=True):
    location: Location
    subject: str
    """`job 'build'`"""
    message: str


def call_site() -> Location:
    """The line outside the SDK that is being executed: where the author calls a factory."""
    frame = sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(_SDK):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def location_of(function: Callable[..., Any]) -> Location:
    """Where a function is written: its first decorator or its `def`. The call site for what has no code of its own."""
    while inner := getattr(function, "__wrapped__", None) or getattr(function, "func", None):  # wraps, partial
        function = inner
    code = getattr(function, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else call_site()


def refuse(subject: str, message: str, location: Location | None = None) -> None:
    """Raise `DefinitionError`, or note it if the compiler collects."""
    if _collected is None:
        raise DefinitionError(f"{subject}: {message}")
    _collected.append(Refusal(location or call_site(), subject, message))


def collect() -> list[Refusal]:
    """From now on note what is wrong in the list that this returns, instead of raising. For the compiler's process."""
    global _collected
    _collected = []
    return _collected
