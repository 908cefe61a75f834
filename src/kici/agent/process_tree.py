"""Every process that a job's runner has started, so that none is left when the job ends, whatever it did to get away.

A process inside a PID namespace cannot leave it; sandbox `none` has no such namespace and needs one of these:

- a **cgroup** (v2) of the job's own, where we may make one: membership is inherited and cannot be left without the
  right to write elsewhere, and `cgroup.kill` ends all members at once;
- else we **adopt orphans** (`runner.processes`). The runner adopts its own, so while it lives everything stands below
  it. What is orphaned by the runner's death comes to us; it is told apart from other jobs' by a mark in the environment
  that a process is started with. One that has wiped its environment is ended with the last job that runs here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from kici.runner.processes import LINUX, adopt_orphans, children, end_descendants, gone, is_zombie, reap, signal_all

MARK = "KICI_PROCESS_TREE"
"""Environment variable by which an orphan is known."""
_KILL_S = 10.0
_PREFIX = "kici-job-"
_ABANDONED_S = 60.0
"""A new one is empty for a moment, until its first process is in it."""


class ProcessTree(Protocol):
    def env(self) -> dict[str, str]:
        """What the first process must have in its environment."""

    def add(self, pid: int) -> None:
        """Take in the first process, before it starts others. Raises `OSError`."""

    async def kill(self) -> None:
        """End all of them. Safe to call again. The first process is reaped by whoever waits for it."""


def new_tree() -> ProcessTree:
    """The best that this machine has."""
    parent = _own_cgroup()
    if parent is not None:
        with suppress(OSError):
            return CgroupTree(parent)
    return AdoptingTree()


def report_survivors(pid: int) -> None:
    """Something below `pid` could not be killed: tell the agent's operator."""
    import structlog  # late: `kici run local` starts without it

    structlog.get_logger(__name__).error("processes of a job could not be killed", pid=pid)


class CgroupTree:
    """Raises `OSError` where no cgroup can be made."""

    def __init__(self, parent: Path) -> None:
        _remove_abandoned(parent)
        self._path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._path.mkdir()
        if not (self._path / "cgroup.kill").exists():  # before Linux 5.14
            self._path.rmdir()
            raise NotADirectoryError("this kernel has no cgroup.kill")

    def env(self) -> dict[str, str]:
        return {}

    def add(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # it has ended already
            (self._path / "cgroup.procs").write_text(str(pid))

    async def kill(self) -> None:
        with suppress(FileNotFoundError):
            (self._path / "cgroup.kill").write_text("1")
            async with asyncio.timeout(_KILL_S):
                while not self._removed():  # noqa: ASYNC110 - nothing can be awaited: cgroup.events tells it by inotify
                    await asyncio.sleep(0.002)

    def _removed(self) -> bool:
        """A cgroup can be removed once its last member has ended."""
        try:
            self._path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _remove_abandoned(parent: Path) -> None:
    """What agents that were killed have left. Only empty ones can be removed; their processes ended with them."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _ABANDONED_S:
                path.rmdir()


_adopting: set[AdoptingTree] = set()
"""Those with a process."""


class AdoptingTree:
    def __init__(self) -> None:
        adopt_orphans()
        self._mark = secrets.token_hex(8)
        self._pid = 0

    def env(self) -> dict[str, str]:
        return {MARK: self._mark}

    def add(self, pid: int) -> None:
        self._pid = pid
        _adopting.add(self)

    async def kill(self) -> None:
        if self not in _adopting:
            return
        if not LINUX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, 9)
            _adopting.discard(self)
            return
        async with asyncio.timeout(_KILL_S):
            await end_descendants(self._pid, grace_s=0)
            signal_all([self._pid], 9)
            await gone([self._pid], _KILL_S)  # only then are its orphans ours
            while orphans := self._orphans():
                for orphan in orphans:
                    await end_descendants(orphan, grace_s=0)
                signal_all(orphans, 9)
                await gone(orphans, 0.05)
                reap(orphans)
            reap(_adopted_zombies())
        _adopting.discard(self)

    def _orphans(self) -> list[int]:
        alone = _adopting <= {self}
        return [pid for pid in children(os.getpid()) - _known() if self._is_ours(pid, alone)]

    def _is_ours(self, pid: int, alone: bool) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        mark = next((entry for entry in environ if entry.startswith(f"{MARK}=".encode())), None)
        return mark == f"{MARK}={self._mark}".encode() or (mark is None and alone and _was_adopted(pid))


def _known() -> set[int]:
    return {tree._pid for tree in _adopting}


def _adopted_zombies() -> list[int]:
    """Without those that somebody here waits for: what we start is in our session, or leads one."""
    ours = os.getsid(0)
    return [pid for pid in children(os.getpid()) if is_zombie(pid) and _session(pid) not in (ours, pid, -1)]


def _was_adopted(pid: int) -> bool:
    """Not one that we started ourselves: those are in our session, or known."""
    return _session(pid) not in (os.getsid(0), -1)


def _session(pid: int) -> int:
    """-1 = it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _own_cgroup() -> Path | None:
    """Our directory in the cgroup v2 hierarchy, wherever that is mounted."""
    if not LINUX:
        return None
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
        memberships = Path("/proc/self/cgroup").read_text()
    except OSError:
        return None
    mount = next((line.split(" ")[4] for line in mounts.splitlines() if " - cgroup2 " in line), None)
    own = next((line[3:] for line in memberships.splitlines() if line.startswith("0::")), None)
    if mount is None or own is None:
        return None
    path = Path(mount) / own.lstrip("/")
    return path if os.access(path, os.W_OK) and os.access(path / "cgroup.procs", os.W_OK) else None
