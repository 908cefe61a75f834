"""The objects of Git LFS as they are kept: one file each, named by its SHA-256, the agent's own, lent to a job, checked
by its name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from kici.agent.kept_directories import link_or_copy
from kici.agent.workspace import Workspace

NAME = re.compile(r"[0-9a-f]{64}")
SPARE_BYTES = 64 * 1024 * 1024
_NEW = ".new"


def lend(place: Path, names: Iterable[str], store: Path, space: Workspace) -> list[str]:
    """Put those that are kept into the job's `store`, where git-lfs looks for them; which those are. For a job of
    another user they are the kept files themselves, which it can read and do nothing else with. Raises `OSError`."""
    lent = []
    for name in names:
        made = store / name[:2] / name[2:4] / name
        try:
            if not stat.S_ISREG((place / name).lstat().st_mode):
                raise OSError(errno.EINVAL, "is no file", str(place / name))
        except FileNotFoundError:
            continue
        _make_directories(made.parent, store.parent.parent, space)
        link_or_copy(place / name, made, link=space.owner is not None)
        os.utime(place / name)
        lent.append(name)
    return lent


def damaged(names: Iterable[str], store: Path) -> list[str]:
    """Read every byte of what was lent; those that are not what their names say are removed from `store` again."""
    wrong = []
    for name in names:
        made = store / name[:2] / name[2:4] / name
        if not _is_whole(made, name):
            made.unlink(missing_ok=True)
            wrong.append(name)
    return wrong


def drop(place: Path, names: Iterable[str]) -> None:
    for name in names:
        (place / name).unlink(missing_ok=True)


def found(store: Path) -> dict[str, Path]:
    """Those of a job, by name. git-lfs has put them there, and no user code could."""
    files = (path for path in store.glob("??/??/*") if NAME.fullmatch(path.name))
    return {path.name: path for path in files if stat.S_ISREG(path.lstat().st_mode)}


def take(place: Path, files: Collection[Path], space: Workspace) -> None:
    """Make them the agent's own, under `place`. Where they belong to another user they change hands and stay; else they
    are copied."""
    for file in files:
        new = place / _NEW
        new.unlink(missing_ok=True)
        link_or_copy(file, new, link=space.owner is not None)
        if space.owner is not None:
            os.chown(new, os.geteuid(), os.getegid(), follow_symlinks=False)
        new.chmod(0o444)
        os.utime(new)
        new.rename(place / file.name)


def trim(place: Path, used: Collection[str]) -> None:
    """Drop what no job has used for the longest time, until the rest is no more than twice what is `used` now and
    `SPARE_BYTES`."""
    sizes = {path.name: path.stat().st_size for path in place.iterdir() if NAME.fullmatch(path.name)}
    total = sum(sizes.values())
    limit = 2 * sum(sizes.get(name, 0) for name in used) + SPARE_BYTES
    for name in sorted(sizes.keys() - set(used), key=lambda name: (place / name).stat().st_mtime):
        if total <= limit:
            break
        (place / name).unlink()
        total -= sizes[name]


def _is_whole(file: Path, name: str) -> bool:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return False
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == name
    except OSError:
        return False  # a disk that cannot read it: the server has it too


def _make_directories(directory: Path, top: Path, space: Workspace) -> None:
    """Below `top`, each the slot user's."""
    for part in reversed([directory, *directory.parents]):
        if part.is_relative_to(top) and part != top and not part.exists():
            part.mkdir()
            space.hand_over(part)
