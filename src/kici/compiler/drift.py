"""How a committed lock file differs from what a compile gives, line by line."""

from __future__ import annotations

from pathlib import Path

from kici.engine import lockfile
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile


def differences(root: Path, lock: LockFile, data: bytes) -> list[str]:
    """Empty if the lock file at `root` is this one, byte for byte apart from CRLF."""
    try:
        committed = (root / lockfile.PATH).read_bytes().replace(b"\r\n", b"\n")
    except FileNotFoundError:
        return [f"{lockfile.PATH} is missing"]
    if committed == data:
        return []
    try:
        before = lockfile.decode(committed)
    except LockFileError as error:
        return [str(error)]
    from kici.compiler import changes  # only where there are any

    return [str(change) for change in changes.between(before, lock)] or [f"{lockfile.PATH} is written differently"]
