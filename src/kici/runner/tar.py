"""The program `tar`, with both ends as pipes: files on their way to the host and back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from kici.errors import KiciError
from kici.runner.processes import Child

_PIECE_BYTES = 262_144
_SAID_BYTES = 65_536
_NOT_THERE = ("Not found in archive", "Exiting with failure status due to previous errors")


class ArtifactFailed(KiciError):
    """Files could not be stored or fetched. The message says which and why."""

    code = "artifact_failed"
    status = 422


class Tar:
    """It is a child like a command of the step, and ends with it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0,
            start_new_session=True, env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
        self._child = Child(self._process.pid, on_exit=self._ended)
        self._loop = asyncio.get_running_loop()

    def _ended(self, code: int) -> None:
        self._process.returncode = code

    async def read(self) -> bytes:
        assert self._process.stdout
        return await self._loop.run_in_executor(None, self._process.stdout.read, _PIECE_BYTES) or b""

    async def read_all(self) -> bytes:
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    async def write_all(self, data: bytes) -> None:
        await self.write(data)
        self.close_input()

    async def write(self, data: bytes) -> None:
        await self._loop.run_in_executor(None, self._write, data)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin
        view = memoryview(data)
        with suppress(BrokenPipeError):  # its exit code will say why
            while view:
                view = view[self._process.stdin.write(view) or 0 :]

    def close_input(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    async def check(self, *, missing_is_fine: bool = False) -> None:
        """Raises `ArtifactFailed` unless it ended well. Members that it was to extract may be `missing_is_fine`."""
        if not await self._child.wait():
            return
        self._said.seek(0)
        lines = self._said.read(_SAID_BYTES).decode(errors="replace").strip().splitlines()
        if missing_is_fine and lines and all(line.endswith(_NOT_THERE) for line in lines):
            return
        raise ArtifactFailed(f"tar failed: {lines[0] if lines else f'exit code {self._child.returncode}'}")

    def close(self) -> None:
        self._child.signal(9)
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe and not pipe.closed:
                pipe.close()
