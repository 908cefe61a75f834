"""The packs of one mirror as they are kept: the agent's own, sealed, lent to a job's repository, checked by content.

A mirror is a directory with git's packs, a manifest under a digest, and the repository's address for people. It is no
repository: git never runs in it, so nothing in it can be half done, and there is no configuration and no ref to break.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from kici.agent.errors import MirrorBroken
from kici.agent.kept_directories import link_or_copy
from kici.agent.workspace import Owner

MANIFEST, ADDRESS = "manifest", "repository"
MAX_PACKS = 50
"""A mirror with so many since its first fetch does not grow any more."""
SPARE_BYTES = 64 * 1024 * 1024
"""Nor one that has become larger than twice its first fetch and this: what it has has little in common by then."""
_HASH_BYTES = 20
_PIECE_BYTES = 1_048_576


class Pack(Struct, frozen=True, array_like=True):
    name: str
    """Without `.pack` and `.idx`."""
    bytes: int
    index_bytes: int
    seal: str
    """The end of its index, in hex: the digest of the pack, and of the index itself."""


class Manifest(Struct, frozen=True):
    """Whatever leads from `tips` to what has no parents, or stands in `shallow`, is in the packs."""

    packs: tuple[Pack, ...] = ()
    tips: tuple[str, ...] = ()
    """Commits, the last one that was kept first."""
    shallow: tuple[str, ...] = ()
    """Commits whose parents are missing."""
    tags: tuple[str, ...] = ()
    """Objects of annotated tags that are in the packs too."""
    first: int = 1
    """So many packs, the first ones, are what the first fetch has left."""
    first_tips: tuple[str, ...] = ()
    """Of a mirror of the history: what those packs alone hold whatever leads to."""

    @property
    def bytes(self) -> int:
        return _bytes(self.packs)

    @property
    def is_large(self) -> bool:
        return self.bytes > 2 * _bytes(self.packs[: self.first]) + SPARE_BYTES

    @property
    def is_full(self) -> bool:
        return len(self.packs) - self.first + 1 >= MAX_PACKS or self.is_large

    def has(self, names: Iterable[str]) -> bool:
        return set(names) <= set(self.tips)


def read(place: Path) -> Manifest | None:
    """None: nothing is kept there. Raises `MirrorBroken`."""
    try:
        digest, _, encoded = (place / MANIFEST).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if hashlib.sha256(encoded).hexdigest().encode() != digest:
        raise MirrorBroken("its manifest is damaged")
    try:
        return msgspec.json.decode(encoded, type=Manifest)
    except msgspec.DecodeError as error:
        raise MirrorBroken(f"its manifest cannot be read: {error}") from error


def write(place: Path, manifest: Manifest) -> None:
    encoded = msgspec.json.encode(manifest)
    new = place / f".{MANIFEST}"
    new.write_bytes(hashlib.sha256(encoded).hexdigest().encode() + b"\n" + encoded)
    new.rename(place / MANIFEST)


def lend(place: Path, manifest: Manifest, target: Path, *, link: bool) -> None:
    """Put the packs into the directory `target`. With `link` they are the kept files themselves: for a job of another
    user, who can read them and do nothing else. Raises `MirrorBroken` if one is missing."""
    for name in _files(manifest.packs):
        try:
            link_or_copy(place / name, target / name, link=link)
        except FileNotFoundError:
            raise MirrorBroken(f"{name} is missing") from None


def check(directory: Path, manifest: Manifest) -> None:
    """Read every byte of the packs. Raises `MirrorBroken` if one is not what git has written."""
    for pack in manifest.packs:
        seal = bytes.fromhex(pack.seal)
        _check(directory / f"{pack.name}.idx", pack.index_bytes, seal[_HASH_BYTES:])
        _check(directory / f"{pack.name}.pack", pack.bytes, seal[:_HASH_BYTES])


def take(place: Path, source: Path, kept: Iterable[Pack], owner: Owner | None) -> tuple[Pack, ...]:
    """Make the packs in the directory `source` that are not `kept` yet the agent's own, under `place`; which those are.

    git has written them for `owner`, and no user code could. Where that is another user than the agent's, the files
    change hands and stay; else they are copied.
    """
    kept = tuple(kept)
    _remove_others(place, {pack.name for pack in kept})
    taken = []
    for name in new(source, kept):
        pack, index = (f"{name}.{kind}" for kind in ("pack", "idx"))
        for file in (pack, index):
            _take(source / file, place / file, owner)
        with (place / index).open("rb") as opened:
            opened.seek(-2 * _HASH_BYTES, os.SEEK_END)
            seal = opened.read().hex()
        taken.append(Pack(name, (place / pack).stat().st_size, (place / index).stat().st_size, seal))
    return tuple(taken)


def new(source: Path, kept: Iterable[Pack]) -> list[str]:
    """Names of the packs in the directory `source` that are not `kept` yet; those without objects do not count."""
    known = {pack.name for pack in kept}
    found = sorted(source.glob("pack-*.idx"))
    return [index.stem for index in found if index.stem not in known and not _is_empty(index.with_suffix(".pack"))]


def _take(file: Path, kept: Path, owner: Owner | None) -> None:
    if not stat.S_ISREG(file.lstat().st_mode):
        raise OSError(errno.EINVAL, "is no file", str(file))
    link_or_copy(file, kept, link=owner is not None)
    if owner is not None:
        os.chown(kept, os.geteuid(), os.getegid(), follow_symlinks=False)
    kept.chmod(0o444)


def _check(file: Path, size: int, seal: bytes) -> None:
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno()).st_size
            if found != size:
                raise MirrorBroken(f"{file.name} has {found:,} bytes, not {size:,}")
            digest, left = hashlib.sha1(usedforsecurity=False), size - _HASH_BYTES
            while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
                digest.update(piece)
                left -= len(piece)
            if not digest.digest() == opened.read() == seal:
                raise MirrorBroken(f"{file.name} is damaged")
    except OSError as error:
        raise MirrorBroken(f"{file.name} cannot be read: {error.strerror}") from error


def _remove_others(place: Path, known: Iterable[str]) -> None:
    """What an agent that was killed has left half taken."""
    names = {f"{name}.{kind}" for name in known for kind in ("pack", "idx")} | {MANIFEST, ADDRESS}
    for path in place.iterdir():
        if path.name not in names:
            path.unlink()


def _bytes(packs: Iterable[Pack]) -> int:
    return sum(pack.bytes + pack.index_bytes for pack in packs)


def _is_empty(pack: Path) -> bool:
    """git writes a pack without objects when a server had nothing to send."""
    with contextlib.suppress(OSError), pack.open("rb") as opened:
        return int.from_bytes(opened.read(12)[8:], "big") == 0
    return True


def _files(packs: Iterable[Pack]) -> list[str]:
    # git looks for indexes, and must then find the pack.
    return [f"{pack.name}.{kind}" for pack in packs for kind in ("pack", "idx")]
