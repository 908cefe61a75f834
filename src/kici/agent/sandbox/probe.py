"""One program in one box, to see whether a sandbox works on this machine."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kici.agent.sandbox.contract import Box, BoxSpec, Limits, SandboxUnavailable
from kici.agent.sandbox.slot_users import PROBE_SLOT


class RunsPrograms(Protocol):
    async def run(self, spec: BoxSpec, command: Sequence[str], socket: int) -> Box: ...


def probe(
    sandbox: RunsPrograms, command: Sequence[str], *, limits: Limits = Limits(), timeout_s: float
) -> tuple[int, str]:
    """How it ended, and its last words. Blocks, in a loop of its own: the caller may be in one already.

    Raises `SandboxUnavailable` if the box cannot be started, or the program takes longer.
    """
    found: list[tuple[int, str]] = []
    problem: list[BaseException] = []

    def in_thread() -> None:
        try:
            found.append(asyncio.run(_run(sandbox, command, limits, timeout_s)))
        except (SandboxUnavailable, OSError) as error:  # a time that is over is one of these
            problem.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    if not found:
        raise SandboxUnavailable(str(problem[0]) if problem and str(problem[0]) else "a probe did not end")
    return found[0]


async def _run(sandbox: RunsPrograms, command: Sequence[str], limits: Limits, timeout_s: float) -> tuple[int, str]:
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory(prefix="kici-probe-") as directory:
        root = Path(directory)
        for name in ("src", "kici", "tmp", "home"):
            (root / name).mkdir()
        box = await sandbox.run(BoxSpec(PROBE_SLOT, root, limits=limits), command, theirs.fileno())
        try:
            async with asyncio.timeout(timeout_s):
                code = await box.wait()
            return code, box.last_words()
        finally:
            await box.kill()
