"""A user namespace with many users, for jobs that build container images: they own files as users of the image.

The namespace's root is the user that the box has on the host; users 1 to 65,536 are a range that nobody else has: a
root agent's slot has a range of its own, an agent that is not root uses its user's range of `/etc/subuid` in all boxes.
A root agent's containers have the range of their slot too: `range_of`.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from kici.agent.sandbox import slot_users
from kici.agent.sandbox.contract import SandboxUnavailable
from kici.subprocesses import started

FIRST = 0x7000_0000
"""From here up systemd, container engines and `useradd` give out nothing. Times 478 slots it stays below 2^31."""
USERS = 65_536
_READY_S = 20.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Range(Struct, frozen=True):
    """Of ids on the host."""

    first: int
    count: int = USERS


class Users(Struct, frozen=True):
    uid: int
    """On the host, of the namespace's root."""
    gid: int
    uids: Range
    """The first stands for 1 inside."""
    gids: Range


def range_of(slot: int) -> Range:
    """Of a root agent's slot. Raises `SandboxUnavailable`."""
    slot_users.check(slot)
    return Range(FIRST + slot * USERS)


def of_slot(slot: int, owner: int) -> Users:
    """For a root agent."""
    own = range_of(slot)
    return Users(owner, owner, own, own)


def of_this_user(who: str = "image builds need") -> Users:
    """Raises `SandboxUnavailable` if the operator has given this user no ranges: `who` begins its message."""
    missing = [name for name in ("newuidmap", "newgidmap") if shutil.which(name, path=_PATH) is None]
    if missing:
        raise SandboxUnavailable(f"{who} `{missing[0]}`: install the package uidmap (or shadow-utils)")
    return Users(os.geteuid(), os.getegid(), _range(Path("/etc/subuid"), who), _range(Path("/etc/subgid"), who))


@asynccontextmanager
async def opened(users: Users) -> AsyncIterator[int]:
    """A descriptor of a new namespace. Raises `SandboxUnavailable` with the system's own words."""
    async with _process(users, "unshare", "--user", *_WAITS) as first:
        await _write("uid", first.pid, users.uid, users.uids)
        await _write("gid", first.pid, users.gid, users.gids)
        with _of(first) as namespace:
            yield namespace


@asynccontextmanager
async def opened_inside(outer: int) -> AsyncIterator[int]:
    """A namespace with the same users in one that is ours: its root cannot change the mounts of the outer one's."""
    enter = ["nsenter", f"--user=/proc/{os.getpid()}/fd/{outer}"]
    async with _process(None, *enter, "unshare", "--user", *_WAITS) as first:
        # A line of its own for what is a line of its own outside: none may reach over two.
        script = 'for map in uid_map gid_map; do printf "0 0 1\\n1 1 %d\\n" "$2" >/proc/$1/$map; done'
        await _run(*enter, "/bin/sh", "-ec", script, "sh", str(first.pid), str(USERS))
        with _of(first) as namespace:
            yield namespace


async def take_back(users: Users, directory: Path) -> None:
    """Make an agent that is not root the owner of everything below again, or it could not remove it.

    Nobody uses it now. What cannot be had is told in the log.
    """
    try:
        async with opened(users) as namespace:
            enter = ("nsenter", f"--user=/proc/{os.getpid()}/fd/{namespace}")
            await _run(*enter, "chown", "--no-dereference", "--recursive", "0:0", "--", str(directory))
    except SandboxUnavailable as error:
        import structlog  # late: who only asks what there is starts without it

        structlog.get_logger(__name__).warning(
            "a job's files are not all the agent's own", directory=str(directory), reason=str(error)
        )


_WAITS = ("/bin/sh", "-c", "echo; read -r _")


@asynccontextmanager
async def _process(users: Users | None, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has said a line, and waits until the context ends."""
    pipe = asyncio.subprocess.PIPE
    argv = [*_as(users), _program(command[0]), *command[1:]]
    async with started(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": _PATH}) as process:
        assert process.stdout
        try:
            async with asyncio.timeout(_READY_S):
                line = await process.stdout.readline()
        except TimeoutError:
            raise SandboxUnavailable(f"no user namespace came up within {_READY_S:.0f} s") from None
        if not line:
            _, words = await process.communicate()
            raise SandboxUnavailable(f"no user namespace can be made: {words.decode(errors='replace').strip()}")
        yield process


@contextmanager
def _of(process: asyncio.subprocess.Process) -> Iterator[int]:
    descriptor = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _as(users: Users | None) -> list[str]:
    """A root agent's namespace must belong to the box's user, or that one could not enter it."""
    if os.geteuid() != 0 or users is None:
        return []
    dropped = ["--reuid", str(users.uid), "--regid", str(users.gid), "--clear-groups"]
    return [_program("setpriv"), *dropped, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


async def _write(kind: str, pid: int, root: int, others: Range) -> None:
    if os.geteuid() == 0:
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {root} 1\n1 {others.first} {others.count}\n")
    else:
        await _run(f"new{kind}map", *map(str, (pid, 0, root, 1, 1, others.first, others.count)))


async def _run(*command: str) -> None:
    async with started(
        _program(command[0]),
        *command[1:],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": _PATH},
    ) as process:
        _, words = await process.communicate()
    if process.returncode:
        raise SandboxUnavailable(f"image builds need several users: {words.decode(errors='replace').strip()[:500]}")


def _range(file: Path, who: str) -> Range:
    names = [str(os.geteuid())]
    with suppress(KeyError):
        names.insert(0, pwd.getpwuid(os.geteuid()).pw_name)
    with suppress(FileNotFoundError):
        for line in file.read_text().splitlines():
            match line.split(":"):
                case [name, first, count] if name in names and first.isdigit() and count.isdigit():
                    if int(count) >= USERS:
                        return Range(int(first))
    raise SandboxUnavailable(
        f"{who} {USERS:,} ids for {names[0]} in {file}: "
        f"`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {names[0]}` gives them"
    )


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise SandboxUnavailable(f"image builds need `{name}`: install util-linux")
    return found
