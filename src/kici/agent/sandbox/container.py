"""Sandbox by podman: a container of an image that the operator names.

Inside there is: the image, read-only; the job's directory at `/work`, `/work/kici` and `/work/packages` read-only in
it; `/tmp` and `/var/tmp`, which are `/work/tmp`; the agent's Python and packages below `/opt/kici`, read-only, so that
the runner is always the agent's own version. The image must have glibc and bash: a probe at the start tells what it
lacks. Nothing of the agent's environment or of the host's file system is in it.

The job has no capability, cannot gain one, and has a user namespace of its own. Under a root agent that one has a range
of users which no other slot has, so that not even its root is anybody on the host; else it is podman's, and the job is
the agent's user in it (`keep-id`).

podman leaves the container behind if we die. So beside each there is a process that waits for the end of a pipe that we
hold, and then removes the container; and what even that did not remove is swept at the agent's next start.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kici.agent.process_tree import report_survivors
from kici.agent.sandbox import cgroups, podman, seccomp_profile, slot_users, user_namespace
from kici.agent.sandbox.contract import Box, BoxSpec, Limits, SandboxUnavailable, Usage
from kici.agent.sandbox.launch import SOURCE, LastWords, Started, spawn
from kici.agent.sandbox.measures import Measures
from kici.agent.sandbox.probe import probe
from kici.runner.processes import gone

WORK = "/work"
_KICI = "/opt/kici"
_UID = slot_users.FIRST_UID
"""Of a root agent's steps, inside. No image has this user."""
_MASKED = "/sys/fs:/sys/kernel"
"""With the host's network there is the host's `/sys`, and all that is mounted in it: a user namespace may mount its own
with a network of its own only. Without root podman shows the host's control groups in any case, of version 1."""
_SHM_BYTES = 1024**3
_START_S = 60.0
_KILL_S = 30.0
_FROM_PATHS = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from kici.runner.__main__ import main; raise SystemExit(main())"
)
_PROBE = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); import kici.runner.job, shutil; "
    "sys.exit(0 if shutil.which('bash') else 'it has no bash on its PATH')"
)
_IN_DIRECTORY = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "kici-podman")
"""podman's monitor writes a file `oom` to the directory that it was started in: one that is gone by then."""
_WATCH = 'read -r _ <&3; for _ in 1 2 3; do "$1" rm --force --time=0 --ignore "$2"; sleep 1; done'


def runner_argv() -> list[str]:
    return [python(), "-I", "-c", _FROM_PATHS, search_path()]


class ContainerSandbox:
    """Pulls the image, sweeps, and starts a container once to see that it works: blocks, minutes for a large image.

    Raises `SandboxUnavailable`.
    """

    name = "container"

    def __init__(self, options: podman.Options) -> None:
        podman.check_image(options.image)
        self._options = options
        self._program = podman.program()
        self._root = os.geteuid() == 0
        podman.sweep(options.agent)
        podman.have_image(options)
        self._seccomp = seccomp_profile.profile(podman.machine().seccomp, platform.machine())
        self._machine = podman.image_environment(options.image)
        self._check_image()

    def machine(self) -> Mapping[str, str]:
        """The image's own: nothing of the host's."""
        return self._machine

    def owner(self, slot: int) -> int | None:
        """For a root agent: `_UID` of the slot's own range."""
        return user_namespace.range_of(slot).first + _UID if self._root else None

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box:
        return await self.run(spec, runner_argv(), runner_socket)

    async def run(self, spec: BoxSpec, command: Sequence[str], socket: int) -> Box:
        """`start`, for any command. Raises `SandboxUnavailable` with podman's own words if it does not come up."""
        owner = self.owner(spec.slot)
        slot_users.hand_over(spec.root, owner)
        box = ContainerBox(self._program, f"kici-{self._options.agent}-{spec.slot}-{secrets.token_hex(4)}", spec)
        try:
            with tempfile.TemporaryDirectory(prefix="kici-podman-") as directory:
                pid_file, profile = Path(directory) / "pid", Path(directory) / "seccomp.json"
                profile.write_bytes(self._seccomp)
                arguments = [*self._arguments(spec, box.name, pid_file, profile), *command]
                await box.start([*_IN_DIRECTORY, directory, *arguments], socket, pid_file)
        except BaseException:
            await asyncio.shield(asyncio.create_task(box.kill()))
            raise
        return box

    def _arguments(self, spec: BoxSpec, name: str, pid_file: Path, profile: Path) -> Iterator[str]:
        yield from (self._program, "run", "--detach", f"--name={name}", f"--pidfile={pid_file}", "--preserve-fds=3")
        yield from ("--label=kici-sandbox=true", f"--label={podman.LABEL}={self._options.agent}")
        yield from ("--pull=never", "--log-driver=none", "--no-healthcheck", "--systemd=false", "--image-volume=ignore")
        yield from ("--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false")
        yield f"--security-opt=seccomp={profile}"
        yield from ("--pid=private", "--ipc=private", "--uts=private", "--cgroupns=private", "--http-proxy=false")
        yield f"--network={'host' if spec.network else 'none'}"
        if spec.network or not self._root:
            yield f"--security-opt=mask={_MASKED}"
        if self._root:
            uid, users = _UID, user_namespace.range_of(spec.slot)
            yield from (f"--{kind}map=0:{users.first}:{users.count}" for kind in ("uid", "gid"))
            yield f"--user={uid}:{uid}"
        else:
            uid = os.geteuid()
            yield "--userns=keep-id"
        yield f"--passwd-entry=kici:x:{uid}:{uid}::{WORK}/home:/bin/bash"
        yield from _limits(spec.limits)
        for variable in (f"HOME={WORK}/home", "TMPDIR=/tmp", "LANG=C.UTF-8"):
            yield f"--env={variable}"
        yield from (f"--workdir={WORK}/src", f"--shm-size={_SHM_BYTES}")
        yield from self._mounts(spec.root)
        yield from (f"--entrypoint={python()}", self._options.image)
        yield from ("-I", "-S", f"{_inside(SOURCE)}/kici/agent/sandbox/container_init.py")

    def _mounts(self, root: Path) -> Iterator[str]:
        yield _mount(root, WORK, writable=True)
        for name in ("kici", "packages"):
            if (root / name).is_dir():
                yield _mount(root / name, f"{WORK}/{name}")
        for place in ("/tmp", "/var/tmp"):  # noqa: S108
            yield _mount(root / "tmp", place, writable=True)
        for host, inside in _runtime():
            yield _mount(host, inside)

    def _check_image(self) -> None:
        argv = [python(), "-I", "-c", _PROBE, search_path()]
        try:
            code, words = probe(self, argv, limits=self._options.limits, timeout_s=_START_S)
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"KICI_SANDBOX=container, but {error}") from error
        if code:
            raise SandboxUnavailable(
                f"KICI_SANDBOX=container, but the image {self._options.image} cannot run jobs: "
                f"{words or f'a probe ended with {code}'}. An image needs glibc and bash; see container-sandbox.md"
            )


class ContainerBox:
    def __init__(self, program: str, name: str, spec: BoxSpec) -> None:
        self.name = name
        self._program = program
        self._spec = spec
        self._init = 0
        self._pidfd = -1
        self._status = -1
        self._words: LastWords | None = None
        self._podman: Started | None = None
        self._measures = Measures([])
        self._groups: list[Path] = []
        self._limits = spec.limits
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._killing: asyncio.Task[None] | None = None
        ours, theirs = os.pipe()
        self._alive = theirs
        try:
            self._watcher = spawn(["/bin/sh", "-c", _WATCH, "kici-watch", program, name], podman.environment(), ours)
        except BaseException:
            os.close(theirs)
            raise
        finally:
            os.close(ours)

    async def start(self, arguments: Sequence[str], socket: int, pid_file: Path) -> None:
        """Raises `SandboxUnavailable`. Then and if cancelled, `kill` removes what there may be."""
        self._status, status = os.pipe()
        words_read, words = os.pipe()
        self._words = LastWords(words_read)
        os.set_blocking(self._status, False)
        try:
            self._podman = spawn(arguments, podman.environment(), socket, (status, words))
        finally:
            os.close(status)
            os.close(words)
        try:
            async with asyncio.timeout(_START_S):
                code = await self._podman.child.wait()
        except TimeoutError:
            raise SandboxUnavailable(f"podman did not start a container within {_START_S:.0f} s") from None
        if code:
            raise SandboxUnavailable(f"podman run failed ({code}): {self.last_words() or 'it says nothing'}")
        self._init = int(pid_file.read_text())
        try:
            self._pidfd = os.pidfd_open(self._init)
        except ProcessLookupError:
            self._end()
            return
        self._loop.add_reader(self._pidfd, self._end)
        directories = cgroups.of_process(self._init)
        if directories:  # else it has ended in the meantime
            cgroups.check(directories, self._spec.limits)
        self._measures, self._groups = Measures(directories), directories

    @property
    def pid(self) -> int:
        return self._init

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill())
        await asyncio.shield(self._killing)

    def path(self, host: Path) -> str:
        inside = host.relative_to(self._spec.root)
        return f"{WORK}/{inside}" if inside.parts else WORK

    def lower(self, limits: Limits) -> Limits:
        self._limits = cgroups.lowered(self._groups, self._limits, limits)
        return self._limits

    def usage(self) -> Usage:
        self._measures.sample()
        return self._measures.usage()

    def last_words(self) -> str:
        inside = self._words.text() if self._words else ""
        return inside or (self._podman.words.text() if self._podman else "")

    def _end(self) -> None:
        """The first process has ended, and with it all others of the container."""
        self._measures.sample()  # podman removes the control group soon
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        told = b""
        with suppress(BlockingIOError):
            told = os.read(self._status, 16)
        code = int(told) if told.isdigit() else 128 + signal.SIGKILL
        if not self._ended.done():
            self._ended.set_result(128 - code if code > 128 else code)

    async def _kill(self) -> None:
        if self._pidfd >= 0 and not self._ended.done():
            self._measures.sample()
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            if not await gone([self._init], _KILL_S):
                report_survivors(self._init)
            self._end()
        if self._podman is not None:
            self._podman.child.signal(signal.SIGKILL)  # where it has not come up yet
            await self._podman.child.wait()
        await self._remove()
        self._watcher.child.signal(signal.SIGKILL)
        await self._watcher.child.wait()
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)
        for words in (self._words, self._podman.words if self._podman else None, self._watcher.words):
            if words is not None:
                words.text()
                words.close()
        for descriptor in (self._pidfd, self._status, self._alive):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._status = self._alive = -1

    async def _remove(self) -> None:
        said = ""
        for _ in range(podman.REMOVALS):
            code, said = await self._remove_once()
            if code == 0:
                return
        import structlog  # late: as in process_tree

        structlog.get_logger(__name__).error("a container could not be removed", name=self.name, reason=said)

    async def _remove_once(self) -> tuple[int, str]:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            argv = [self._program, "rm", "--force", "--time=0", "--ignore", self.name]
            removing = spawn(argv, podman.environment(), null)
        finally:
            os.close(null)
        code = await removing.child.wait()
        said = removing.words.text()
        removing.words.close()
        return code, said


def _limits(limits: Limits) -> Iterator[str]:
    if limits.memory_bytes is not None:
        yield from (f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}")
    if limits.cpus is not None:
        yield f"--cpus={limits.cpus:.5f}"
    if limits.pids is not None:
        yield f"--pids-limit={limits.pids}"


def _mount(host: Path, inside: str, *, writable: bool = False) -> str:
    """Of what is mounted no device is one, and no set-user-id bit counts: `--mount` of podman 4 cannot say that."""
    if ":" in str(host):
        raise SandboxUnavailable(f"podman cannot mount {str(host)!r}: it has a colon in it")
    return f"--volume={host}:{inside}:{'rw' if writable else 'ro'},nodev,nosuid"


def _runtime() -> list[tuple[Path, str]]:
    """Where the agent's Python, its packages and kici are on the host, and where inside."""
    base = Path(sys.base_prefix).resolve()
    found = [(base, f"{_KICI}/python")]
    packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    for number, path in enumerate(sorted({*packages, SOURCE})):
        if path.is_dir() and not path.is_relative_to(base):
            found.append((path, f"{_KICI}/packages-{number}"))
    return found


def _inside(path: Path) -> str:
    for host, inside in _runtime():
        if path.is_relative_to(host):
            return f"{inside}/{path.relative_to(host)}".rstrip("/.")
    raise SandboxUnavailable(f"{path} is not mounted in containers")


def python() -> str:
    """The interpreter, as seen from inside."""
    return _inside(Path(sys.executable).resolve())


def search_path() -> str:
    """Of the agent's packages and kici, as seen from inside."""
    return ":".join(inside for _, inside in _runtime()[1:])
