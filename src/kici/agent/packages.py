"""The packages of an environment as they are kept: sealed once, checked before each use, handed over into a job.

A kept environment is a directory with `packages/` (what was in site-packages) and `manifest.json`. Everything in it
belongs to the agent, and nobody else can write there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from kici.agent.errors import PreparationFailed
from kici.agent.kept_directories import link_or_copy

PACKAGES, MANIFEST = "packages", "manifest.json"
MAX_ENTRIES = 300_000


class Entry(Struct, frozen=True, array_like=True):
    path: str
    size: int
    """-1: a directory."""
    mtime_ns: int
    target: str = ""
    """Of a symbolic link."""


class Manifest(Struct, frozen=True):
    bytes: int
    entries: tuple[Entry, ...]
    """A directory stands before what it holds."""


def seal(tree: Path) -> None:
    """Make everything below `tree` the agent's own, readable to all and writable to nobody else.

    What stands there may have been written by hostile code, which runs no more. Raises `PreparationFailed` for what is
    neither file nor directory, and for a link that leaves the tree.
    """
    uid, gid = os.geteuid(), os.getegid()
    for count, path in enumerate(_walk(tree)):
        if count > MAX_ENTRIES:
            raise PreparationFailed(f"the workflow's packages have more than {MAX_ENTRIES:,} files")
        if not path.name.isprintable():  # also what is no UTF-8
            raise PreparationFailed(f"the workflow's packages hold a file with an odd name: {_name(tree, path)}")
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            _check_link(tree, path)
        elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise PreparationFailed(f"the workflow's packages hold {_name(tree, path)}, which is no file")
        if os.geteuid() == 0:
            os.chown(path, uid, gid, follow_symlinks=False)
        if not stat.S_ISLNK(mode):
            path.chmod(0o755 if stat.S_ISDIR(mode) or mode & 0o111 else 0o644)


def keep(tree: Path, place: Path) -> Manifest:
    """Put a sealed tree where it is found under `place`, as one move. Both are in the same file system."""
    new = place.with_name(f".new-{place.name}")
    new.mkdir(mode=0o755)
    new.chmod(0o755)
    tree.rename(new / PACKAGES)
    entries = tuple(_entry(new / PACKAGES, path) for path in _walk(new / PACKAGES) if path != new / PACKAGES)
    manifest = Manifest(sum(max(entry.size, 0) for entry in entries), entries)
    (new / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    new.rename(place)
    return manifest


def check(place: Path) -> Manifest | None:
    """The manifest, if every file is as it was; None if one is missing, cut or changed, or nothing is kept there."""
    try:
        manifest = msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
        whole = all(_entry(place / PACKAGES, place / PACKAGES / entry.path) == entry for entry in manifest.entries)
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if whole else None


def hand_over(place: Path, manifest: Manifest, target: Path, *, link: bool) -> None:
    """Fill the directory `target`. With `link` the files are the kept ones themselves: for a job of another user."""
    for entry in manifest.entries:
        source, made = place / PACKAGES / entry.path, target / entry.path
        if entry.size < 0:
            made.mkdir(mode=0o755)
            made.chmod(0o755)
        elif entry.target:
            made.symlink_to(entry.target)
        else:
            link_or_copy(source, made, link=link)


def _walk(tree: Path) -> Iterator[Path]:
    """The tree itself and all below it, without recursion; links are not followed. Sorted, so that it is repeatable."""
    stack = [tree]
    while stack:
        path = stack.pop()
        yield path
        if stat.S_ISDIR(path.lstat().st_mode):
            with os.scandir(path) as entries:
                stack += [Path(entry.path) for entry in sorted(entries, key=lambda one: one.name, reverse=True)]


def _entry(tree: Path, path: Path) -> Entry:
    about = path.lstat()
    name = str(path.relative_to(tree))
    if stat.S_ISDIR(about.st_mode):
        return Entry(name, -1, 0)
    if stat.S_ISLNK(about.st_mode):
        return Entry(name, 0, 0, os.readlink(path))
    return Entry(name, about.st_size, about.st_mtime_ns)


def _check_link(tree: Path, path: Path) -> None:
    target = os.readlink(path)
    meant = Path(os.path.normpath(path.parent / target))
    names = target.split("/")
    # Up, and then only down: what is up from another link nobody knows by the names.
    climbs_later = ".." in names[names.count("..") :] or "." in names
    if os.path.isabs(target) or climbs_later or not meant.is_relative_to(tree):
        raise PreparationFailed(f"the workflow's packages hold a link that leaves them: {_name(tree, path)}")


def _name(tree: Path, path: Path) -> str:
    return repr(str(path.relative_to(tree)))[:200]
