"""Which sandbox an agent uses: what its operator wants, and what the machine can do."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kici.agent.sandbox.contract import BoxSpec, Sandbox, SandboxUnavailable

if TYPE_CHECKING:
    from kici.agent.sandbox.bubblewrap import Bubblewrap

PROBE_SLOT = 477
"""The last one: no agent has so many, so a probe meets no job."""


class Choice(Struct, frozen=True):
    sandbox: Sandbox
    why: str
    """For the log: `bubblewrap works here`, or why it is not used."""


def choose(mode: str) -> Choice:
    """`auto` takes bubblewrap where it works, `true` insists, `false` takes none.

    To know whether it works, a box is started once; this takes some milliseconds and blocks. Raises
    `SandboxUnavailable` with the reason for `true`.
    """
    from kici.agent.sandbox.none import NoSandbox

    if mode == "false":
        return Choice(NoSandbox(), "switched off by KICI_SANDBOX=false: steps run as the agent's own user")
    if mode not in ("auto", "true"):
        raise SandboxUnavailable(f"KICI_SANDBOX={mode!r} is unknown: write auto, true or false")
    try:
        from kici.agent.sandbox.bubblewrap import Bubblewrap

        sandbox = Bubblewrap()
        _probe(sandbox)
    except SandboxUnavailable as error:
        if mode == "true":
            raise SandboxUnavailable(f"KICI_SANDBOX=true, but {error}") from error
        return Choice(NoSandbox(), f"no sandbox, steps run as the agent's own user: {error}")
    return Choice(sandbox, "bubblewrap works here")


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
