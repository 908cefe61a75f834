"""How a committed lock file differs from what a compile gives, in sentences."""

from __future__ import annotations

from pathlib import Path

from kici.engine import lockfile
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile


def differences(root: Path, lock: LockFile, data: bytes) -> list[str]:
    """Empty if the lock file at `root` is this one, byte for byte."""
    try:
        committed = (root / lockfile.PATH).read_bytes()
    except FileNotFoundError:
        return [f"{lockfile.PATH} is missing"]
    if committed.replace(b"\r\n", b"\n") == data:
        return []
    try:
        before = lockfile.decode(committed)
    except LockFileError as error:
        return [str(error)]
    found = list(_files(before.files, lock.files))
    old = {workflow.name: workflow for workflow in before.workflows}
    new = {workflow.name: workflow for workflow in lock.workflows}
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            found.append(f"workflow {name!r} is gone")
        elif name not in old:
            found.append(f"workflow {name!r} is new")
        elif old[name] != new[name]:
            found.append(f"workflow {name!r} has changed")
    return found or [f"{lockfile.PATH} is written differently"]


def _files(old: dict[str, str], new: dict[str, str]) -> list[str]:
    found = []
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            found.append(f".kici/{path} is gone")
        elif path not in old:
            found.append(f".kici/{path} is new")
        elif old[path] != new[path]:
            found.append(f".kici/{path} has changed")
    return found
