"""Importing what stands under `.kici/`: one way for the compiler and the runner, so that both find the same objects.

`.kici/` is on the module path and `.kici/workflows/` is the package `workflows`, with or without `__init__.py`. So a
workflow imports what it shares by `from workflows.shared import lint`, `from .shared import lint`, or, for a directory
`.kici/lib/`, `from lib.release import sign`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from kici.sdk.errors import DefinitionError
from kici.sdk.workflows import Workflow

PACKAGE = "workflows"


def prepare(kici_dir: str, packages: str = "") -> None:
    """Make `.kici/`, and a directory of packages, importable in this process.

    No bytecode is written: the lock file would not list it. The packages come after the standard library and before
    those of this interpreter.
    """
    sys.dont_write_bytecode = True
    if packages:
        _add_packages(packages)
    sys.path.insert(0, kici_dir)
    directory = os.path.join(kici_dir, PACKAGE)
    if not os.path.exists(os.path.join(directory, "__init__.py")):
        # An installed package of this name would win over a directory without __init__.py.
        package = ModuleType(PACKAGE)
        package.__path__ = [directory]
        sys.modules[PACKAGE] = package


def _add_packages(directory: str) -> None:
    """As the interpreter does it, so that `.pth` files count."""
    import site  # late: few need it

    before = list(sys.path)
    site.addsitedir(directory)
    added = [path for path in sys.path if path not in before]
    ends = ("site-packages", "dist-packages")
    position = next((n for n, path in enumerate(before) if path.rstrip(os.sep).endswith(ends)), len(before))
    sys.path[:] = [*before[:position], *added, *before[position:]]


def module_name(path: str) -> str:
    """`workflows/deploy/prod.py` → `workflows.deploy.prod`. The path is below `.kici/`, with `/`."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    if not path.endswith(".py") or any("." in part for part in parts):
        raise DefinitionError(f".kici/{path} cannot be imported: rename it so that its only dot is that of .py")
    return ".".join(parts)


def load(path: str) -> ModuleType:
    """Import the module at a path below `.kici/`. Whatever its top level raises goes to the caller."""
    return import_module(module_name(path))


def exports(module: ModuleType) -> Iterator[tuple[str, Workflow]]:
    """The workflows that a module's names hold, themselves or in a list or tuple, in the order of definition."""
    for name, value in list(vars(module).items()):
        if isinstance(value, Workflow):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for index, element in enumerate(value):
                if isinstance(element, Workflow):
                    yield f"{name}[{index}]", element


def find(module: ModuleType, export: str) -> Workflow:
    """The workflow that the lock file calls `export`."""
    for name, workflow in exports(module):
        if name == export:
            return workflow
    raise DefinitionError(
        f"{module.__name__} has no workflow at {export!r}: run `kici compile` and commit the lock file"
    )
