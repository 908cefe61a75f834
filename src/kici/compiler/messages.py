"""What the compiler and its child tell each other. Not in the child: the compiler does not load the SDK for it."""

from __future__ import annotations

from msgspec import Struct

from kici.compiler.diagnostics import Diagnostic
from kici.engine.lockfile import LockWorkflow


class Request(Struct, frozen=True):
    root: str
    modules: list[str]
    """Paths below `.kici/`."""
    limit_s: float
    """Of one module's import."""


class Importing(Struct, frozen=True, tag=True):
    module: str


class Imported(Struct, frozen=True, tag=True):
    """All modules were tried."""

    workflows: list[LockWorkflow]
    problems: list[Diagnostic]
    names: dict[str, str]
    """Dotted name → path, of the modules under `.kici/` that are loaded now."""


Message = Importing | Imported
