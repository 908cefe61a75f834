"""`python -I -S remove_tree.py <directory>`: empties a directory of what hostile programs have left in it.

A program of its own, of the standard library alone: removing a million files must not hold the agent up, and it
runs with the lowest priority. Every directory that is found is first moved to the top, so the depth of a tree does not
matter, links are never followed, and a mount, which cannot be moved, is never entered. What keeps a file from being
removed (modes, immutable and append-only flags) is taken away first.

Writes what stays to standard output: a JSON list of `[path, reason]`, at most `MAX_TOLD`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

MAX_TOLD = 100
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_KEEPING = 0x10 | 0x20
"""Immutable and append-only."""


class Remover:
    def __init__(self, top: str) -> None:
        self._top = top
        self._fd = os.open(top, _DIRECTORY)
        self._mount = mount_of(self._fd)
        self._moved = 0
        self.left: dict[str, str] = {}
        """Name at the top → why it, or something in it, stays."""

    def run(self) -> None:
        above = os.open("..", _DIRECTORY, dir_fd=self._fd)
        try:
            if mount_of(above) != self._mount:
                self.left["."] = "something is mounted here"
                return
        finally:
            os.close(above)
        while names := [name for name in os.listdir(self._fd) if name not in self.left]:
            for name in names:
                try:
                    self._remove(name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.left.setdefault(name, os.strerror(error.errno or 0))

    def told(self) -> list[tuple[str, str]]:
        return [(os.path.join(self._top, name), why) for name, why in list(self.left.items())[:MAX_TOLD]]

    def _remove(self, name: str) -> None:
        if not stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode):
            _freed(self._fd, name, _unlink)
            return
        directory = _open(self._fd, name)
        try:
            if mount_of(directory) != self._mount:
                raise OSError(errno.EBUSY, "mounted")
            os.fchmod(directory, 0o700)
            _clear_flags(directory)
            while self._empty(directory, name):
                pass
        finally:
            os.close(directory)
        if name not in self.left:
            os.rmdir(name, dir_fd=self._fd)

    def _empty(self, directory: int, name: str) -> bool:
        """One pass; True if it has changed something. Some file systems leave entries out while others are removed."""
        changed = False
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    act = self._move_up if entry.is_dir(follow_symlinks=False) else _unlink
                    _freed(directory, entry.name, act)
                    changed = True
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.left[name] = f"{entry.name[:200]!r}: {os.strerror(error.errno or 0)}"
        return changed

    def _move_up(self, directory: int, name: str) -> None:
        self._moved += 1
        os.rename(name, f"{os.getpid()}-{self._moved}", src_dir_fd=directory, dst_dir_fd=self._fd)


def _freed(directory: int, name: str, act: Callable[[int, str], None]) -> None:
    try:
        act(directory, name)
    except PermissionError:
        free(directory, name)
        act(directory, name)


def _unlink(directory: int, name: str) -> None:
    os.unlink(name, dir_fd=directory)


def free(directory: int, name: str) -> None:
    """Take away what keeps an entry from being moved or removed, as far as we may."""
    _clear_flags(directory)
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        entry = _open(directory, name)
    elif stat.S_ISREG(mode):
        entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    else:
        return
    try:
        _clear_flags(entry)
        if stat.S_ISDIR(mode):
            os.fchmod(entry, 0o700)
    finally:
        os.close(entry)


def mount_of(descriptor: int) -> str:
    """The kernel's number of the mount that it is on; a bind mount has one of its own."""
    with open(f"/proc/self/fdinfo/{descriptor}") as told:
        return next((line.split()[1] for line in told if line.startswith("mnt_id:")), "")


def _open(directory: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        # A directory, as its caller knows, and nobody else can put something in its place.
        os.chmod(name, 0o700, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)


def _clear_flags(descriptor: int) -> None:
    with suppress(OSError):  # a file system without flags
        flags = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, b"\0" * 4))[0]
        if flags & _KEEPING:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags & ~_KEEPING))


def main(top: str) -> int:
    os.nice(19)
    remover = Remover(top)
    remover.run()
    sys.stdout.write(json.dumps(remover.told()))
    return 1 if remover.left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
