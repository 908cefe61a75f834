"""Which sandbox an agent uses: what its operator wants, and what the machine can do."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct

from kici.agent.sandbox.contract import BoxSpec, Sandbox, SandboxUnavailable
from kici.agent.sandbox.seccomp import Profile
from kici.agent.sandbox.slot_users import PROBE_SLOT

if TYPE_CHECKING:
    from kici.agent.sandbox.bubblewrap import Bubblewrap
    from kici.agent.sandbox.podman import Options


Mode = Literal["auto", "true", "false", "bubblewrap", "container", "none"]
"""`true` is `bubblewrap`, `false` is `none`."""


class Choice(Struct, frozen=True):
    sandbox: Sandbox
    why: str
    """For the log: `bubblewrap works here`, or why it is not used."""
    fallback: str = ""
    """What jobs are not protected by although `auto` would, and why; empty if nothing is missing."""
    profile: Profile = "steps"


def choose(mode: str, profile: Profile = "steps", container: Options | None = None) -> Choice:
    """`auto` takes bubblewrap where it works, and tells what is missing; the others insist.

    To know whether it works, a box is started once; this takes some milliseconds and blocks. Raises
    `SandboxUnavailable` with the reason for all but `auto`, and for a profile other than `steps`.
    """
    if mode not in get_args(Mode):
        raise SandboxUnavailable(f"KICI_SANDBOX={mode!r} is unknown: write {', '.join(get_args(Mode))}")
    if mode in ("false", "none", "container") and profile != "steps":
        raise SandboxUnavailable(f"KICI_SANDBOX_PROFILE={profile} needs KICI_SANDBOX=bubblewrap, but it is {mode}")
    if mode in ("false", "none"):
        from kici.agent.sandbox.none import NoSandbox

        return Choice(NoSandbox(), f"switched off by KICI_SANDBOX={mode}: steps run as the agent's own user")
    if mode == "container":
        return Choice(_container(container), "KICI_SANDBOX=container")
    return _bubblewrap(mode, profile)


def _bubblewrap(mode: str, profile: Profile) -> Choice:
    from kici.agent.sandbox.bubblewrap import Bubblewrap

    try:
        return Choice(_works(lambda: Bubblewrap(profile)), "bubblewrap works here", profile=profile)
    except SandboxUnavailable as error:
        if profile != "steps":
            raise SandboxUnavailable(f"KICI_SANDBOX_PROFILE={profile}, but {error}") from error
        if mode != "auto":
            raise SandboxUnavailable(f"KICI_SANDBOX={mode}, but {error}") from error
        problem = str(error)
    try:
        unfiltered = _works(lambda: Bubblewrap(profile, filtered=False))
    except SandboxUnavailable:
        from kici.agent.sandbox.none import NoSandbox

        missing = f"no sandbox, steps run as the agent's own user: {problem}"
        return Choice(NoSandbox(), missing, missing)
    missing = f"no seccomp filter: {problem}"
    return Choice(unfiltered, f"bubblewrap works here, but {missing}", missing)


def _container(wanted: Options | None) -> Sandbox:
    from kici.agent.sandbox.container import ContainerSandbox  # for those who want it only

    if wanted is None:
        raise SandboxUnavailable("KICI_SANDBOX=container is for agents: this program does not know which image")
    return ContainerSandbox(wanted)


def _works(make: Callable[[], Bubblewrap]) -> Bubblewrap:
    sandbox = make()
    _probe(sandbox)
    return sandbox


def _probe(sandbox: Bubblewrap) -> None:
    """Start `true` in a box, in a loop of its own: the caller may be in one already."""
    problem: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(_run_true(sandbox))
        except (SandboxUnavailable, OSError) as error:
            problem.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    if problem:
        raise SandboxUnavailable(str(problem[0]))


async def _run_true(sandbox: Bubblewrap) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory(prefix="kici-probe-") as directory:
        root = Path(directory)
        for name in ("src", "kici", "tmp", "home"):
            (root / name).mkdir()
        box = await sandbox.run(BoxSpec(PROBE_SLOT, root), ["/bin/sh", "-c", "exit 0"], theirs.fileno())
        try:
            async with asyncio.timeout(20):
                code = await box.wait()
            words = box.last_words()
        finally:
            await box.kill()
    if code:
        raise SandboxUnavailable(f"a probe in bubblewrap ended with {code}: {words or 'it says nothing'}")
    if os.geteuid() == 0 and words:
        raise SandboxUnavailable(f"a probe in bubblewrap complained: {words}")
