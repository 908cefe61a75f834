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

    Returns them, sorted. Raises `ArtifactFailed` (a file is where a directory is to be, or the other way) or `OSError`.
    """
    folders, files = [], []
    for folder, below, names in os.walk(source):
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        here = os.path.relpath(folder, source)
        folders += [os.path.normpath(os.path.join(here, name)) for name in below if name not in links]
        files += [os.path.normpath(os.path.join(here, name)) for name in names + links]
    for path in folders:
        there = os.path.join(target, path)
        if os.path.lexists(there) and (os.path.islink(there) or not os.path.isdir(there)):
            raise ArtifactFailed(f"{path!r} is a directory in the archive, and something else where it is to go")
    for path in files:
        there = os.path.join(target, path)
        if os.path.isdir(there) and not os.path.islink(there):
            raise ArtifactFailed(f"{path!r} is a file in the archive, and a directory where it is to go")
    modes = []
    for path in folders:
        whole, there = os.path.join(source, path), os.path.join(target, path)
        if not os.path.lexists(there):
            modes.append((there, stat.S_IMODE(os.lstat(whole).st_mode)))
            os.mkdir(there)
        os.chmod(whole, 0o700)
    for path in files:
        os.replace(os.path.join(source, path), os.path.join(target, path))
    for there, mode in reversed(modes):
        os.chmod(there, mode)
    return sorted(files)


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
