"""Runs uv, which downloads what others have made and, where the operator allows it, runs their code.

Like git it gets nothing of the agent's: an environment of its own, and where there is a sandbox namespaces in which it
sees the system and the interpreter, read-only, and can write in two directories. A root agent's uv is a user of its own
per trust, which no job is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from kici.agent.errors import DiskFull, PreparationFailed
from kici.agent.sandbox.bubblewrap import child_pid, find_bwrap, system_mounts, visible
from kici.agent.sandbox.contract import SandboxUnavailable
from kici.agent.sandbox.launch import interpreter_paths
from kici.agent.workspace import Owner
from kici.dependencies import uv
from kici.dependencies.declared import LOCK, PROJECT, Declared
from kici.runner.processes import gone
from kici.subprocesses import started

SYNC_S = 900.0
_KILL_S = 10.0
MAX_OUTPUT_BYTES = 262_144
_FULL = ("No space left on device", "Disk quota exceeded", "os error 28")
_BUILD, _CACHE = "/build", "/cache"
"""Where the two directories stand inside."""


class Installation(Struct, frozen=True):
    """`build` is new, and gone afterwards; `cache` is kept for the next one with the same trust."""

    build: Path
    cache: Path
    owner: Owner | None
    sandboxed: bool


async def sync(
    where: Installation, wanted: Declared, *, builds: bool, credentials: Mapping[str, str]
) -> tuple[Path, str]:
    """The site-packages directory that was made below `build`, and what uv said. No process of it is left.

    Raises `PreparationFailed` with the end of what uv said, `DiskFull`.
    """
    _lay_out(where, wanted)
    build, cache = (_BUILD, _CACHE) if where.sandboxed else (str(where.build), str(where.cache))
    environment = uv.sync_environment(
        home=f"{build}/home", cache=cache, target=f"{build}/environment", variables=os.environ
    )
    program = uv.find_uv()
    first: int | None = None
    try:
        async with contextlib.AsyncExitStack() as running:
            info_read, info_write = os.pipe()
            try:
                process = await running.enter_async_context(
                    started(
                        *_confinement(where, program, info_write),
                        *uv.sync_argv(program, f"{build}/project", builds=builds),
                        cwd="/" if where.sandboxed else where.build,
                        env=environment | {"TMPDIR": f"{build}/home"} | dict(credentials),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=asyncio.subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=(info_write,) if where.sandboxed else (),
                    )
                )
            except BaseException:
                os.close(info_read)
                raise
            finally:
                os.close(info_write)
            first = await child_pid(info_read)
            async with asyncio.timeout(SYNC_S):
                said = await _output(process)
                code = await process.wait()
    except TimeoutError:
        raise PreparationFailed(f"uv took longer than {SYNC_S:.0f} s to install the workflow's packages") from None
    except SandboxUnavailable as error:
        raise PreparationFailed(f"the workflow's packages could not be installed: {error}") from error
    finally:
        if first is not None:  # when it has ended, the kernel has ended all others of its namespace
            await gone([first], _KILL_S)
    if code:
        if any(sign in said for sign in _FULL):
            raise DiskFull(where.build)
        raise PreparationFailed(f"the workflow's packages could not be installed: {uv.told(said)}")
    tree = uv.site_packages(where.build / "environment")
    # What was built may have put a link in the way; it runs no more, so this stays true.
    if tree.resolve() != where.build.resolve() / tree.relative_to(where.build) or not tree.is_dir():
        raise PreparationFailed(
            "the workflow's packages could not be installed: their directory is not where uv made it"
        )
    return tree, said


def _lay_out(where: Installation, wanted: Declared) -> None:
    made = [where.build, *(where.build / name for name in ("project", "home", "environment"))]
    for directory in (*made, where.cache):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {where.build / "project" / PROJECT: wanted.project, where.build / "project" / LOCK: wanted.lock}
    for path, content in files.items():
        path.write_bytes(content)
    if where.owner:
        for path in (*made, where.cache, *files):
            os.chown(path, where.owner.uid, where.owner.gid, follow_symlinks=False)


def _confinement(where: Installation, program: str, info: int) -> Iterator[str]:
    if not where.sandboxed:
        return
    yield from (find_bwrap(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--die-with-parent", "--new-session", "--info-fd", str(info))
    yield from system_mounts()
    yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # noqa: S108 - of a namespace of its own
    yield from ("--bind", str(where.build), _BUILD, "--bind", str(where.cache), _CACHE)
    certificates = [Path(os.environ[name]) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
    yield from visible([*interpreter_paths(), Path(program).resolve(), Path(program), *certificates])
    yield from ("--remount-ro", "/", "--chdir", "/")
    if where.owner is None:
        yield from ("--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--")
        return
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise PreparationFailed("the workflow's packages cannot be installed without `setpriv`: install util-linux")
    yield from ("--cap-drop", "ALL")
    for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
        yield from ("--cap-add", capability)
    yield from ("--", setpriv, "--reuid", str(where.owner.uid), "--regid", str(where.owner.gid), "--clear-groups")
    yield from ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


async def _output(process: asyncio.subprocess.Process) -> str:
    """The end of it; all is read, so that the process does not hang."""
    assert process.stdout
    kept = b""
    while piece := await process.stdout.read(65_536):
        kept = (kept + piece)[-MAX_OUTPUT_BYTES:]
    return kept.decode(errors="replace")
