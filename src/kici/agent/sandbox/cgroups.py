"""A control group for each box: what its processes may use together, what they have used, and their end.

One directory in every hierarchy that is of use: version 2, where `cgroup.kill` ends all members at once, with the
controllers that are delegated to us; version 1 for those that are not. Membership is inherited. The first process
enters before it becomes the box's program (`entered`), so that no process of the box was ever outside.

A directory is locked while the process that made it lives. So one that can be locked was left by an agent that was
killed: its processes are ended, and it is removed (`sweep`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kici.agent.sandbox.contract import Limits, SandboxUnavailable, Usage
from kici.agent.sandbox.measures import Measures

DEFAULT_PIDS = 4096
"""Against fork bombs, where the operator has said nothing. A build with `make -j64` stays below 500."""

_PREFIX = "kici-box-"
_AGENT = "kici-agent"
"""Where the agent itself goes in version 2: a group with members may not hand controllers down."""
_KILL_S = 10.0
_TRIES = 5
_PERIOD_US = 100_000
_LIMITED = {"memory": "memory_bytes", "cpu": "cpus", "pids": "pids"}
_SETTING = {"memory": "KICI_JOB_MEMORY", "cpu": "KICI_JOB_CPUS", "pids": "KICI_JOB_PIDS"}
_ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 125; shift; n=$((n-1)); done; unset n; exec "$@"'


class Hierarchy(Struct, frozen=True):
    path: Path
    """Where we may make groups."""
    controllers: frozenset[str]
    """Which groups made there have."""
    v2: bool


def hierarchies() -> list[Hierarchy]:
    """Those that we may write to; version 2 first. Empty where there are no control groups."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for membership in sorted(memberships, key=lambda line: not line.startswith("0::")):
        _, names, own = membership.split(":", 2)
        path = _mounted(mounts, frozenset(names.split(",")) if names else frozenset(), own)
        if path is None or not os.access(path, os.W_OK) or not os.access(path / "cgroup.procs", os.W_OK):
            continue
        if names:
            found.append(Hierarchy(path, frozenset(names.split(",")), v2=False))
        else:
            found.append(Hierarchy(path, frozenset(_words(path / "cgroup.subtree_control")), v2=True))
    return found


def enforceable(wanted: Limits) -> Limits:
    """What boxes of an agent will be limited to: what its operator wants, and `DEFAULT_PIDS` where that can be had.

    Called once, at the agent's start. Raises `SandboxUnavailable` that names the setting which cannot be kept here.
    """
    _hand_down()
    with_default = wanted if wanted.pids is not None else replace(wanted, pids=DEFAULT_PIDS)
    for limits in (with_default, wanted):
        try:
            group = ControlGroup.make(limits)
        except SandboxUnavailable:
            if limits == wanted:
                raise
        else:
            if group is not None:
                group.remove_empty()
            return limits
    raise AssertionError("the last try returns or raises")


def enforceable_by_podman(controllers: Collection[str], wanted: Limits) -> Limits:
    """The same for boxes that are containers: podman says which controllers it may use. Raises `SandboxUnavailable`."""
    for controller, field in _LIMITED.items():
        if getattr(wanted, field) is not None and controller not in controllers:
            raise SandboxUnavailable(
                f"{_SETTING[controller]}: podman cannot limit that here, because it has no control group with the "
                f"controller `{controller}`; see job-limits.md, or unset it"
            )
    return wanted if wanted.pids is not None or "pids" not in controllers else replace(wanted, pids=DEFAULT_PIDS)


def of_process(pid: int) -> list[Path]:
    """The directories of the groups that a process is in; empty if it is gone."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        memberships = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for membership in memberships:
        _, names, own = membership.split(":", 2)
        path = _mounted(mounts, frozenset(names.split(",")) if names else frozenset(), own)
        if path is not None and path.is_dir():
            found.append(path)
    return found


def check(directories: Sequence[Path], wanted: Limits) -> None:
    """That these limits are set on groups that somebody else has made. Raises `SandboxUnavailable`."""
    files = {
        "memory": ("memory.max", "memory.limit_in_bytes"),
        "cpu": ("cpu.max", "cpu.cfs_quota_us"),
        "pids": ("pids.max",),
    }
    for controller, names in files.items():
        value = getattr(wanted, _LIMITED[controller])
        texts = [words[0] for one in directories for name in names if (words := _words(one / name))]
        if value is not None and not any(text.isdigit() for text in texts):
            raise SandboxUnavailable(f"{_SETTING[controller]}: podman does not set that limit here; see job-limits.md")


def lowered(directories: Sequence[Path], held: Limits, wanted: Limits) -> Limits:
    """Tighten the limits of a group, which has one directory in each hierarchy, from `held` to the lower of both, value
    by value. What cannot be set stays. Returns what holds then."""
    for controller, field in _LIMITED.items():
        before, value = getattr(held, field), getattr(wanted, field)
        if value is None or (before is not None and value >= before):
            continue
        with suppress(OSError):
            if _write(directories, controller, value):
                held = replace(held, **{field: value})
    return held


class ControlGroup:
    """Of one box. `kill` must be called."""

    def __init__(self, directories: list[_Directory]) -> None:
        self._directories = directories
        self._held = Limits()
        self._measures = Measures([one.path for one in directories])

    @classmethod
    def make(cls, limits: Limits) -> ControlGroup | None:
        """None where there are no control groups and nothing is to be limited. Raises `SandboxUnavailable`."""
        sweep()
        group = cls(list(_directories()))
        try:
            group._limit(limits)
        except BaseException:
            group.remove_empty()
            raise
        return group if group._directories else None

    def entered(self, argv: Sequence[str]) -> list[str]:
        """A command that enters the group and then becomes `argv`, as the same process."""
        files = [str(one.path / "cgroup.procs") for one in self._directories]
        return ["/bin/sh", "-c", _ENTER, "kici-enter", str(len(files)), *files, *argv]

    def lower(self, limits: Limits) -> Limits:
        """What holds from now on. A limit that cannot be set stays as it is."""
        self._held = lowered([one.path for one in self._directories], self._held, limits)
        return self._held

    def usage(self) -> Usage:
        if self._directories:
            self._measures.sample()
        return self._measures.usage()

    async def kill(self) -> None:
        """End every process of it, and remove it. Safe to call again. Raises `TimeoutError`."""
        if self._directories:
            self._measures.sample()
        async with asyncio.timeout(_KILL_S):
            while not self._ended():  # noqa: ASYNC110 - nothing can be awaited: it is told by inotify, in version 2 only
                await asyncio.sleep(0.002)

    def remove_empty(self) -> None:
        """One that no process has entered."""
        while self._directories:
            self._directories.pop().remove()

    def _ended(self) -> bool:
        _end([one.path for one in self._directories])
        self._measures.count()  # a directory that is removed has nothing to tell
        self._directories = [one for one in self._directories if not one.remove()]
        return not self._directories

    def _limit(self, limits: Limits) -> None:
        paths = [one.path for one in self._directories]
        for controller, field in _LIMITED.items():
            value = getattr(limits, field)
            if value is None:
                continue
            try:
                done = _write(paths, controller, value)
            except OSError as error:
                raise SandboxUnavailable(
                    f"{_SETTING[controller]}: the limit cannot be set below {paths[0].parent}: {error.strerror}"
                ) from error
            if not done:
                raise SandboxUnavailable(
                    f"{_SETTING[controller]}: this agent cannot limit that here, because no control group with the "
                    f"controller `{controller}` is delegated to it; see job-limits.md, or unset it"
                )
        self._held = limits


class _Directory:
    """Made and locked. Raises `OSError`."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        self.path = hierarchy.path / name
        for _ in range(_TRIES):
            self.path.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # somebody's sweep was faster than our lock
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)
        raise OSError(errno.EAGAIN, "a control group is removed whenever it is made")

    def remove(self) -> bool:
        """False if a process is in it. Not called again after True."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        os.close(self._lock)
        return True


def _directories() -> Iterator[_Directory]:
    """In all controllers, whatever is limited at the start: limits come with the job too."""
    name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"  # the number is for people
    needed = set(_LIMITED)
    kills_at_once = False
    for hierarchy in hierarchies():
        useful = hierarchy.controllers & (needed if kills_at_once else needed | {"freezer"})
        if not useful and not hierarchy.v2:
            continue
        with suppress(OSError):  # what is missing then, `_limit` tells
            directory = _Directory(hierarchy, name)
            kills_at_once = kills_at_once or (directory.path / "cgroup.kill").exists()
            needed -= hierarchy.controllers
            yield directory


def _write(directories: Sequence[Path], controller: str, value: float) -> bool:
    """False: none of the directories has the controller. The files tell the two versions apart. Raises `OSError`."""
    quota = max(int(value * _PERIOD_US), 1000)
    for directory in directories:
        match controller:
            case "memory" if (limit := directory / "memory.max").exists():
                limit.write_text(str(value))
                with suppress(OSError):  # no swap accounting: then there is none, or it does not count
                    (directory / "memory.swap.max").write_text("0")
                return True
            case "memory" if (limit := directory / "memory.limit_in_bytes").exists():
                limit.write_text(str(value))
                with suppress(OSError):
                    (directory / "memory.memsw.limit_in_bytes").write_text(str(value))
                return True
            case "pids" if (limit := directory / "pids.max").exists():
                limit.write_text(str(value))
                return True
            case "cpu" if (limit := directory / "cpu.max").exists():
                limit.write_text(f"{quota} {_PERIOD_US}")
                return True
            case "cpu" if (limit := directory / "cpu.cfs_quota_us").exists():
                (directory / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                limit.write_text(str(quota))
                return True
    return False


@cache
def sweep() -> None:
    """End and remove what agents that were killed have left. Once per process."""
    for hierarchy in hierarchies():
        for path in hierarchy.path.glob(f"{_PREFIX}*"):
            with suppress(OSError):  # it is gone, or somebody's who lives
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _end_abandoned(path)
                finally:
                    os.close(lock)


def _end_abandoned(path: Path) -> None:
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        _end([path])
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.005)
        else:
            return  # not once more: somebody who makes one may have made it again by now


def _end(paths: Sequence[Path]) -> None:
    """Send every member SIGKILL. None outruns it where the kernel can kill at once, freeze, or refuse new ones."""
    for path in paths:
        with suppress(OSError):
            (path / "cgroup.kill").write_text("1")
            return
    for name, word in (("freezer.state", "FROZEN"), ("pids.max", "0")):
        _tell(paths, name, word)
    for path in paths:
        for pid in map(int, _words(path / "cgroup.procs")):
            with suppress(OSError):
                if pid > 0:  # 0 = of another PID namespace
                    os.kill(pid, signal.SIGKILL)
    _tell(paths, "freezer.state", "THAWED")


def _tell(paths: Sequence[Path], name: str, word: str) -> None:
    for path in paths:
        if (path / name).exists():
            with suppress(OSError):
                (path / name).write_text(word)


def _hand_down() -> None:
    """Version 2: let groups that we make have the controllers. What cannot be had is seen when it is needed."""
    top = next((one for one in hierarchies() if one.v2), None)
    if top is None:
        return
    wanted = [name for name in _words(top.path / "cgroup.controllers") if name in _LIMITED]
    missing = " ".join(f"+{name}" for name in wanted if name not in top.controllers)
    if not missing:
        return
    control = top.path / "cgroup.subtree_control"
    try:
        control.write_text(missing)
    except OSError as error:
        if error.errno != errno.EBUSY:
            return
        with suppress(OSError):
            leaf = top.path / _AGENT
            leaf.mkdir(exist_ok=True)
            for pid in _words(top.path / "cgroup.procs"):
                with suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
            control.write_text(missing)


def _mounted(mounts: Sequence[str], names: frozenset[str], own: str) -> Path | None:
    """Our directory in the hierarchy of these controllers (none: version 2), wherever it is mounted."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if not (kind == "cgroup2" if not names else kind == "cgroup" and names <= set(options.split(","))):
            continue
        inside = Path(own)
        if root != "/" and inside.is_relative_to(root):  # a part of the hierarchy is mounted, as in containers
            inside = Path("/") / inside.relative_to(root)
        if inside.name == _AGENT:
            inside = inside.parent
        return Path(point) / str(inside).lstrip("/")
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
