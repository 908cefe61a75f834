"""What the compiler and its child tell each other. Not in the child: the compiler does not load the SDK for it."""

from __future__ import annotations

from msgspec import Struct

from kici.compiler.diagnostics import Diagnostic
from kici.engine.lockfile import LockWorkflow


class Request(Struct, frozen=True):
    root: str
    modules: tuple[str, ...]
    """Paths below `.kici/`, in the order of import."""
    limit_s: float
    """Of one module's import."""
    packages: str = ""
    """Where the workflows' own packages are; empty = they have none."""


class Importing(Struct, frozen=True, tag=True):
    """Said before each import, so that whoever waits knows what a dead child was doing."""

    module: str


class Imported(Struct, frozen=True, tag=True):
    """All modules were tried."""

    workflows: tuple[LockWorkflow, ...]
    """In the order of modules and names; without content hashes."""
    problems: tuple[Diagnostic, ...]
    modules: tuple[str, ...]
    """Paths below `.kici/` of everything that was imported from there."""


Message = Importing | Imported
