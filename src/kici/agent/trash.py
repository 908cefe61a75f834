"""What jobs have left is moved out of the way at once, and removed in the background: no job waits for it.

`<work dir>/trash/` belongs to the agent alone. What an agent that was killed has left there, the next one removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog

from kici.agent import mounts, remove_tree
from kici.subprocesses import started

log = structlog.get_logger(__name__)

NAME = "trash"
RETRY_S = 300.0
"""For what could not be removed."""


def throw(work_dir: Path, path: Path) -> None:
    """Move something below the work directory out of the way, whoever owns it. No process uses it now.

    A rename, so as fast for a million files. Never raises: what stays is told in the log, with the reason.
    """
    trash = work_dir / NAME
    try:
        trash.mkdir(mode=0o700, exist_ok=True)
        for still in (*mounts.take_away(path), *mounts.take_away(trash)):
            log.error("something is still mounted where a job was", path=str(still))
        _move(path, trash, in_work_dir=path.parent == work_dir)
    except FileNotFoundError:
        return
    except OSError as error:
        log.error("could not remove what a job has left", path=str(path), reason=error.strerror)


class Trash:
    """A service. `wake` it when something was thrown."""

    def __init__(self, work_dir: Path) -> None:
        self._directory = work_dir / NAME
        self._thrown = asyncio.Event()
        self._thrown.set()
        self._idle = asyncio.Event()
        self.left: dict[str, str] = {}
        """Path → why it could not be removed, as of the last time."""

    def wake(self) -> None:
        self._idle.clear()
        self._thrown.set()

    async def run(self) -> None:
        while True:
            self._thrown.clear()
            await self.run_once()
            if not self._thrown.is_set():
                self._idle.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.left else None):
                    await self._thrown.wait()

    async def settle(self, limit_s: float) -> None:
        """Wait until all is removed that can be, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def run_once(self) -> None:
        """Remove everything. When cancelled, no process of ours is left."""
        if not self._directory.is_dir() or not os.listdir(self._directory):
            self.left = {}
            return
        async with started(
            *(sys.executable, "-I", "-S", remove_tree.__file__, str(self._directory)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
        ) as process:
            told, said = await process.communicate()
        self._hear(told, said.decode(errors="replace")[-500:])

    def _hear(self, told: bytes, said: str) -> None:
        try:
            left = dict(json.loads(told))
        except ValueError:
            left = {str(self._directory): said or "the program that removes it ended early"}
        for path in left.keys() - self.left.keys():
            log.error("could not remove what a job has left", path=path, reason=left[path])
        self.left = left


def _move(path: Path, trash: Path, *, in_work_dir: bool) -> None:
    """By descriptors: a job without a sandbox may have put a link in the place of its slot's directory."""
    plain = 0 if in_work_dir else os.O_NOFOLLOW
    with _opened(path.parent, plain) as source, _opened(trash, os.O_NOFOLLOW) as target:
        name = secrets.token_hex(8)
        try:
            os.rename(path.name, name, src_dir_fd=source, dst_dir_fd=target)
        except PermissionError:
            remove_tree.free(source, path.name)
            os.rename(path.name, name, src_dir_fd=source, dst_dir_fd=target)


@contextlib.contextmanager
def _opened(directory: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
