"""A user namespace with many users, for jobs that build container images: they own files as users of the image.

The namespace's root is the user that the box has on the host; users 1 to 65,536 are a range that nobody else has: a
root agent's slot has a range of its own, an agent that is not root uses its user's range of `/etc/subuid` in all boxes.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct

from kici.agent.sandbox.contract import SandboxUnavailable

FIRST = 0x7000_0000
"""From here up systemd, container engines and `useradd` give out nothing. Times 478 slots it stays below 2^31."""
USERS = 65_536
_READY_S = 20.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Range(Struct, frozen=True):
    """Of ids on the host; the first stands for 1 inside."""

    first: int
    count: int = USERS


class Users(Struct, frozen=True):
    uid: int
    """On the host, of the namespace's root."""
    gid: int
    uids: Range
    gids: Range


def of_slot(slot: int, owner: int) -> Users:
    """For a root agent."""
    own = Range(FIRST + slot * USERS)
    return Users(owner, owner, own, own)


def of_this_user() -> Users:
    """Raises `SandboxUnavailable` if the operator has given this user no ranges."""
    missing = [name for name in ("newuidmap", "newgidmap") if shutil.which(name, path=_PATH) is None]
    if missing:
        raise SandboxUnavailable(f"image builds need `{missing[0]}`: install the package uidmap (or shadow-utils)")
    return Users(os.geteuid(), os.getegid(), _range(Path("/etc/subuid")), _range(Path("/etc/subgid")))


@asynccontextmanager
async def opened(users: Users, *command: str) -> AsyncIterator[int]:
    """A descriptor of a new namespace. A command runs in it as its root, and has ended well when the context ends.

    Raises `SandboxUnavailable` with the system's own words.
    """
    script = 'echo; read -r _; exec "$@"' if command else "echo; read -r _"
    argv = [*_as(users), _program("unshare"), "--user", "/bin/sh", "-c", script, "sh", *command]
    pipe = asyncio.subprocess.PIPE
    first = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": _PATH})
    assert first.stdin
    assert first.stdout
    namespace = -1
    try:
        async with asyncio.timeout(_READY_S):
            if not await first.stdout.readline():
                _, words = await first.communicate()
                raise SandboxUnavailable(f"no user namespace can be made: {words.decode(errors='replace').strip()}")
        await _write("uid", first.pid, users.uid, users.uids)
        await _write("gid", first.pid, users.gid, users.gids)
        namespace = os.open(f"/proc/{first.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        yield namespace
        _, words = await first.communicate(b"\n")
        if first.returncode:
            raise SandboxUnavailable(f"{command[0] if command else 'unshare'}: {words.decode(errors='replace')[:500]}")
    except TimeoutError:
        raise SandboxUnavailable(f"no user namespace came up within {_READY_S:.0f} s") from None
    finally:
        if namespace >= 0:
            os.close(namespace)
        if first.returncode is None:
            with suppress(ProcessLookupError):
                first.kill()
            await asyncio.shield(first.wait())


async def take_back(users: Users, directory: Path) -> None:
    """Make an agent that is not root the owner of everything below again, or it could not remove it.

    Nobody uses it now. What cannot be had is told in the log.
    """
    try:
        async with opened(users, "chown", "--no-dereference", "--recursive", "0:0", "--", str(directory)):
            pass
    except SandboxUnavailable as error:
        import structlog  # late: who only asks what there is starts without it

        structlog.get_logger(__name__).warning(
            "a job's files are not all the agent's own", directory=str(directory), reason=str(error)
        )


def _as(users: Users) -> list[str]:
    """A root agent's namespace must belong to the box's user, or that one could not enter it."""
    if os.geteuid() != 0:
        return []
    dropped = ["--reuid", str(users.uid), "--regid", str(users.gid), "--clear-groups"]
    return [_program("setpriv"), *dropped, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


async def _write(kind: str, pid: int, root: int, others: Range) -> None:
    if os.geteuid() == 0:
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {root} 1\n1 {others.first} {others.count}\n")
        return
    argv = [_program(f"new{kind}map"), *map(str, (pid, 0, root, 1, 1, others.first, others.count))]
    wrote = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, words = await wrote.communicate()
    if wrote.returncode:
        raise SandboxUnavailable(f"image builds need several {kind}s: {words.decode(errors='replace').strip()}")


def _range(file: Path) -> Range:
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
        f"image builds need {USERS:,} ids for {names[0]} in {file}: "
        f"`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {names[0]}` gives them"
    )


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise SandboxUnavailable(f"image builds need `{name}`: install util-linux")
    return found
