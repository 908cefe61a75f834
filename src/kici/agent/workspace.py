"""A job's directory on this machine: made for one attempt, owned by its slot, gone afterwards.

`<work dir>/slot-<n>/<random>/` with `src/` (checkout), `kici/` (the verified `.kici/`), `packages/` (of the workflow),
`tmp/`, `home/`.
Where the agent is root, everything in it belongs to the slot's own user, but `kici/` and `packages/`: those stay the
agent's, so that
user code cannot change what was verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import structlog
from msgspec import Struct

from kici.agent import trash
from kici.agent.errors import DiskFull, SettingsInvalid, is_disk_full

log = structlog.get_logger(__name__)

CHECK = "check-"


class Owner(Struct, frozen=True):
    uid: int
    gid: int


class Workspace(Struct, frozen=True):
    slot: int
    root: Path
    owner: Owner | None
    """None: the agent is not root, everything runs as its own user."""

    @property
    def src(self) -> Path:
        return self.root / "src"

    @property
    def kici(self) -> Path:
        return self.root / "kici"

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def hand_over(self, path: Path) -> None:
        """Give it to the slot's user. For what no user code could have put there."""
        if self.owner:
            os.chown(path, self.owner.uid, self.owner.gid, follow_symlinks=False)


class InUse(SettingsInvalid):
    """Another agent has the work directory."""


@contextlib.contextmanager
def locked(work_dir: Path) -> Iterator[None]:
    """Keep other agents out of `work_dir`, which is made if it is not there. Raises `SettingsInvalid`, `InUse`."""
    try:
        work_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
        if work_dir.stat().st_uid != os.geteuid():
            raise SettingsInvalid(f"the work directory {work_dir} belongs to another user: set KICI_WORK_DIR")
        # Others may pass through to what is theirs, and not list it.
        work_dir.chmod(0o711)
        lock = os.open(work_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsInvalid(f"the work directory {work_dir} cannot be used ({error}): set KICI_WORK_DIR") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another agent uses the work directory {work_dir}: set KICI_WORK_DIR") from None
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def claim(work_dir: Path) -> Iterator[None]:
    """Lock `work_dir`, and move what a killed agent, or a killed check, has left in it to the trash."""
    with locked(work_dir):
        for left in (*work_dir.glob("slot-*"), *work_dir.glob(f"{CHECK}*")):
            log.info("removing what an earlier agent has left", directory=str(left))
            trash.throw(work_dir, left)
        yield


@contextlib.contextmanager
def apart(work_dir: Path) -> Iterator[Path]:
    """A directory that stands for a work directory, in this one, whoever has it: for `kici-agent check`."""
    place = work_dir / f"{CHECK}{secrets.token_hex(8)}"
    place.mkdir(mode=0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def opened(work_dir: Path, slot: int, owner: Owner | None) -> Iterator[Workspace]:
    """Raises `DiskFull`. At the end it is thrown into the trash, however its job has left it."""
    space = Workspace(slot, work_dir / f"slot-{slot}" / secrets.token_hex(8), owner)
    try:
        try:
            _make(space)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(work_dir) from error
            raise
        yield space
    finally:
        trash.throw(work_dir, space.root)


def _make(space: Workspace) -> None:
    space.root.parent.mkdir(mode=0o711, exist_ok=True)
    space.root.mkdir(mode=0o700)
    for directory in (space.src, space.tmp, space.home):
        directory.mkdir(mode=0o700)
    for directory in (space.kici, space.packages):
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
    for directory in (space.src, space.tmp, space.home, space.root):
        space.hand_over(directory)
