"""Processes: waiting for children without a thread, and ending trees of them.

Linux tells who descends from whom in `/proc`. A process that becomes a subreaper (`adopt_orphans`) stays the ancestor
of all that its descendants start, however they fork, set sessions or let their parents die: so "the tree below pid"
is complete, and killing until nothing is left ends it. Elsewhere only the process group is known.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_KILL_PASSES = 200
"""A fork bomb may outrun some passes; it cannot outrun a pass that finds each of its few processes."""

_NAMES = 8


class Child:
    """A process that we started; it is reaped when it ends. Made in the loop's thread."""

    def __init__(self, pid: int, *, on_exit: Callable[[int], None] | None = None) -> None:
        self.pid = pid
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
            self._pidfd = -1
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it. Any number of tasks may wait."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._finish(_reaped(self.pid))

    def _wait_in_thread(self) -> None:
        code = _reaped(self.pid)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, code)

    def _finish(self, code: int) -> None:
        self._ended.set_result(code)
        if self._on_exit is not None:
            self._on_exit(code)


def _reaped(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # user code has reaped it
        return 0


def libc() -> Any:
    import ctypes  # late: most processes of ours never need it

    return ctypes.CDLL(None)


def adopt_orphans() -> bool:
    """Become the parent of every orphan among our descendants. False where the system cannot do that."""
    if not LINUX:
        return False
    return bool(libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children(pid: int) -> set[int]:
    """Of all its threads. Empty for a process that is gone."""
    found: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int) -> list[int]:
    """Everything below a process, parents before children, without zombies that have no children."""
    found: list[int] = []
    waiting = [pid]
    seen = {pid}
    while waiting:
        new = children(waiting.pop()) - seen
        seen |= new
        waiting += new
        found += new
    return [one for one in found if not is_zombie(one)]


def is_zombie(pid: int) -> bool:
    """Ended but not reaped, or gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def signal_all(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


async def end_descendants(pid: int, *, grace_s: float, spare: Callable[[int], bool] = lambda pid: False) -> bool:
    """End all below `pid`: SIGTERM, up to `grace_s` to react, then SIGKILL until nothing is left.

    False if something could not be killed (another user's, or in uninterruptible sleep).
    """

    def below() -> list[int]:
        return [one for one in descendants(pid) if not spare(one)]

    if grace_s > 0 and (first := below()):
        signal_all(first, signal.SIGTERM)
        await gone(first, grace_s)
    for _ in range(_KILL_PASSES):
        left = below()
        if not left:
            return True
        signal_all(left, signal.SIGKILL)
        await gone(left, 0.05)
    return not below()


async def gone(pids: Collection[int], timeout_s: float) -> bool:
    """Wait until all of them have ended (zombies count as ended). False if the time is over first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout_at(deadline):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
    return True


def reap(pids: Iterable[int]) -> None:
    """Those of them that have ended and are our children. Nobody else must wait for them."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def names(pids: Collection[int]) -> str:
    """`sleep, node (3)`: what people call these processes, some of very many."""
    counts: dict[str, int] = {}
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
            name = "".join(letter for letter in file.read().strip() if letter.isprintable())
            counts[name] = counts.get(name, 0) + 1
    shown = [f"{name} ({count})" if count > 1 else name for name, count in list(counts.items())[:_NAMES]]
    return ", ".join(shown) + (", …" if len(counts) > _NAMES else "") or "processes"
