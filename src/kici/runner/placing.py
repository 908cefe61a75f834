"""Moves what was unpacked to where it belongs: all of it, or nothing and what was there stays.

Everything that can go wrong is done or looked at first. What is left then are renames within one file system, and they
are taken back if one of them fails.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack

from kici.runner.archive import scratch
from kici.runner.program import ArtifactFailed


def replace(moves: Sequence[tuple[str, str, str]]) -> None:
    """Of each (source, target, top): `source` takes the place of `target`, which lies below `top`.

    A source that is not there leaves its target alone. Raises `ArtifactFailed` or `OSError`: nothing has changed.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, str, str]] = []
        for source, target, top in moves:
            if not os.path.lexists(source):
                continue
            target = target.rstrip("/")
            parent = _parent(target, top)
            aside = stack.enter_context(scratch(parent))
            if os.stat(aside).st_dev != os.lstat(source).st_dev:
                copied = os.path.join(aside, "new")
                _copy(source, copied)
                source = copied
            ready.append((source, target, os.path.join(aside, "old")))
        done: list[tuple[str, str, str]] = []
        try:
            for source, target, old in ready:
                if os.path.lexists(target):
                    _rename(target, old)
                done.append((source, target, old))
                _rename(source, target)
        except OSError:
            for source, target, old in reversed(done):
                if os.path.lexists(target):
                    _rename(target, source)
                if os.path.lexists(old):
                    _rename(old, target)
            raise


def lay_over(source: str, target: str) -> list[str]:
    """The files below `source` go to the same places below `target`, over what has their names.

    A directory that the target does not have goes there whole. Returns the files, sorted. Raises `ArtifactFailed` (a
    file is where a directory is to be, or the other way: nothing has changed) or `OSError`.
    """
    files: list[str] = []
    shared: list[str] = []
    """Directories that the target has too, and no symbolic link on the way to any of them."""
    moves: list[tuple[str, bool]] = []
    """What goes by one rename, and whether it is a directory."""
    waiting = [("", True)]
    while waiting:
        folder, is_shared = waiting.pop()
        if is_shared:
            shared.append(folder)
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                is_folder = entry.is_dir(follow_symlinks=False)
                there = _mode(os.path.join(target, path)) if is_shared else 0
                if is_folder and there and not stat.S_ISDIR(there):
                    raise ArtifactFailed(
                        f"{path!r} is a directory in the archive, and something else where it is to go"
                    )
                if not is_folder and stat.S_ISDIR(there):
                    raise ArtifactFailed(f"{path!r} is a file in the archive, and a directory where it is to go")
                if is_folder:
                    waiting.append((path, bool(there)))
                else:
                    files.append(path)
                if is_shared and not (is_folder and there):
                    moves.append((path, is_folder))
    for folder in shared:
        os.chmod(os.path.join(source, folder), 0o700)
    for path, is_folder in moves:
        move = _rename if is_folder else os.replace
        move(os.path.join(source, path), os.path.join(target, path))
    return sorted(files)


def _mode(path: str) -> int:
    """0 = there is nothing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _parent(target: str, top: str) -> str:
    """The directory of `target`, made if need be. Raises `ArtifactFailed` where a link leads out of `top`."""
    parent = os.path.dirname(target)
    nearest = parent
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not (os.path.realpath(nearest) + os.sep).startswith(os.path.realpath(top) + os.sep):
        raise ArtifactFailed(f"{target} leads out of {top} by a symbolic link")
    if os.path.islink(target):
        raise ArtifactFailed(f"{target} is a symbolic link: what is restored would go where it leads")
    os.makedirs(parent, exist_ok=True)
    return parent


def _rename(source: str, target: str) -> None:
    """Also of a directory that may not be written: to move it its `..` is written."""
    mode = os.lstat(source).st_mode
    closed = stat.S_ISDIR(mode) and not mode & stat.S_IWUSR
    if closed:
        os.chmod(source, stat.S_IMODE(mode) | stat.S_IWUSR)
    os.rename(source, target)
    if closed:
        os.chmod(target, stat.S_IMODE(mode))


def _copy(source: str, target: str) -> None:
    done = subprocess.run(
        ["cp", "-a", "-T", "--", source, target], capture_output=True, env=os.environ | {"LC_ALL": "C"}, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ArtifactFailed(f"cp failed: {lines[0] if lines else done.returncode}")
