"""A running PostgreSQL server of one data directory: who it is, whether it lives, how it is signalled.

A pid in `postmaster.pid` may be years old and belong to anybody now, so nothing is believed or signalled before
/proc says that the process is a PostgreSQL server that works in this very data directory. From then on a pidfd names
it, which no later process can inherit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

from msgspec import Struct

SOCKET_NAME = ".s.PGSQL.5432"


class PidFile(Struct, frozen=True):
    pid: int
    socket_dir: str = ""
    status: str = ""
    """`starting`, `ready`, `stopping`; empty while the server is still writing the file."""


class Postmaster:
    """A verified server process. Close it when it is no longer watched."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def send(self, number: signal.Signals) -> None:
        """Signal it. A server that has ended meanwhile is fine."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def alive(self) -> bool:
        return not select.select([self._pidfd], [], [], 0)[0]

    async def ended(self) -> None:
        """Return when the process has ended."""
        await _readable(self._pidfd)

    def close(self) -> None:
        os.close(self._pidfd)


def read_pid_file(data: Path) -> PidFile | None:
    """What `postmaster.pid` says, or None if there is none that can be read."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    lines += [""] * 8
    return PidFile(pid, socket_dir=lines[4].strip(), status=lines[7].strip())


def verified(pid: int, data: Path) -> Postmaster | None:
    """`pid` as the server of `data`, or None if it is anything else."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # Checked after the pidfd was opened: it cannot change hands any more.
    if _serves(pid, data):
        return Postmaster(pid, pidfd)
    os.close(pidfd)
    return None


async def finished(child: subprocess.Popen[bytes]) -> int:
    """The exit status of a child of ours, once it has ended."""
    pidfd = os.pidfd_open(child.pid)
    try:
        await _readable(pidfd)
    finally:
        os.close(pidfd)
    return child.wait()


async def _readable(pidfd: int) -> None:
    """A pidfd becomes readable when its process ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


def _serves(pid: int, data: Path) -> bool:
    process = Path("/proc") / str(pid)
    try:
        program = os.readlink(process / "exe").removesuffix(" (deleted)")
        return Path(program).name in {"postgres", "postmaster"} and (process / "cwd").samefile(data)
    except OSError:
        return False
