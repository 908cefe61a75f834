"""Every process that a job's runner has started, so that none is left when the job ends, whatever it did to get away.

A process inside a PID namespace cannot leave it; sandbox `none` has no such namespace and needs one of these:

- a **control group** of the job's own, where we may make one: membership is inherited and cannot be left without the
  right to write elsewhere, and all members can be ended at once (`sandbox.cgroups`);
- else we **adopt orphans** (`runner.processes`). The runner adopts its own, so while it lives everything stands below
  it. What is orphaned by the runner's death comes to us; it is told apart from other jobs' by a mark in the environment
  that a process is started with. One that has wiped its environment is ended with the last job that runs here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from kici.agent.sandbox.cgroups import ControlGroup
from kici.agent.sandbox.contract import Limits, Usage
from kici.runner.processes import LINUX, adopt_orphans, children, end_descendants, gone, is_zombie, reap, signal_all
from kici.subprocesses import is_own

MARK = "KICI_PROCESS_TREE"
"""Environment variable by which an orphan is known."""
_KILL_S = 10.0


class ProcessTree(Protocol):
    def env(self) -> dict[str, str]:
        """What the first process must have in its environment."""

    def entered(self, argv: Sequence[str]) -> Sequence[str]:
        """The command by which the first process is to be started."""

    def add(self, pid: int) -> None:
        """Tell which process that is."""

    def lower(self, limits: Limits) -> Limits:
        """Tighten the limits; what holds then."""

    def usage(self) -> Usage: ...

    async def kill(self) -> None:
        """End all of them. Safe to call again. The first process is reaped by whoever waits for it."""


def new_tree(limits: Limits = Limits()) -> ProcessTree:
    """The best that this machine has. Raises `SandboxUnavailable` where it cannot keep these limits."""
    group = ControlGroup.make(limits)
    return AdoptingTree() if group is None else GroupTree(group)


def report_survivors(pid: int) -> None:
    """Something below `pid` could not be killed: tell the agent's operator."""
    import structlog  # late: `kici run local` starts without it

    structlog.get_logger(__name__).error("processes of a job could not be killed", pid=pid)


class GroupTree:
    def __init__(self, group: ControlGroup) -> None:
        self._group = group

    def env(self) -> dict[str, str]:
        return {}

    def entered(self, argv: Sequence[str]) -> Sequence[str]:
        return self._group.entered(argv)

    def add(self, pid: int) -> None:
        pass  # it has entered by itself

    def lower(self, limits: Limits) -> Limits:
        return self._group.lower(limits)

    def usage(self) -> Usage:
        return self._group.usage()

    async def kill(self) -> None:
        await self._group.kill()


_adopting: set[AdoptingTree] = set()
"""Those with a process."""
_before: set[int] = set()
"""Children that we had when no job was here: nothing of a job's is among them."""


class AdoptingTree:
    def __init__(self) -> None:
        adopt_orphans()
        if not _adopting:
            _before.clear()
            _before.update(children(os.getpid()))
        self._mark = secrets.token_hex(8)
        self._pid = 0

    def env(self) -> dict[str, str]:
        return {MARK: self._mark}

    def entered(self, argv: Sequence[str]) -> Sequence[str]:
        return argv

    def lower(self, limits: Limits) -> Limits:
        return Limits()

    def usage(self) -> Usage:
        return Usage()

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
    return pid not in _before and not is_own(pid) and _session(pid) not in (os.getsid(0), -1)


def _session(pid: int) -> int:
    """-1 = it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
