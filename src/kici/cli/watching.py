"""Waits for changes below `.kici/`. By looking: works on every file system, and a directory of workflows is small."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

DEBOUNCE_S = 0.2
"""An editor writes a file in several steps; nothing is done before all is quiet for so long."""
_NOT_WATCHED = frozenset({"__pycache__", ".venv", ".git", "node_modules"})
State = frozenset[tuple[str, int, int]]


def changed(
    directory: Path, ignored: frozenset[str], known: State, pause: Callable[[float], None] = time.sleep
) -> State:
    """Returns the new state once it is another one than `known`, and quiet again."""
    while True:
        now = state(directory, ignored)
        if now != known:
            pause(DEBOUNCE_S)
            if state(directory, ignored) == now:
                return now
        else:
            pause(DEBOUNCE_S)


def state(directory: Path, ignored: frozenset[str]) -> State:
    """Name, time and size of every file; `ignored` are names directly below the directory."""
    found = set()
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in _NOT_WATCHED]
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, directory) in ignored or name.endswith((".pyc", "~", ".swp")):
                continue
            try:
                status = os.stat(path)
            except OSError:  # gone meanwhile
                continue
            found.add((path, status.st_mtime_ns, status.st_size))
    return frozenset(found)
