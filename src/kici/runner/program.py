"""Programs that read and write pipes: of this process, or of one another with a meter in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from kici.errors import KiciError
from kici.runner.processes import Child

PIECE_BYTES = 262_144
_PIPE_BYTES = 1_048_576
_SAID_BYTES = 65_536


class ArtifactFailed(KiciError):
    """Files could not be stored or fetched. The message says which and why."""

    code = "artifact_failed"
    status = 422


class Program:
    """It is a child like a command of the step, and ends with it."""

    def __init__(self, argv: Sequence[str], *, discard_output: bool = False) -> None:
        self.name = argv[0]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        environment = {name: value for name, value in os.environ.items() if name != "TAR_OPTIONS"}
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL if discard_output else subprocess.PIPE,
                stderr=self._said, bufsize=0, pipesize=_PIPE_BYTES, start_new_session=True,
                env=environment | {"LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise ArtifactFailed(f"{self.name} cannot be started: {error.strerror}") from error
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._child = Child(self._process.pid, on_exit=self._ended)
        self._loop = asyncio.get_running_loop()

    def _ended(self, code: int) -> None:
        self._process.returncode = code

    def limit_files(self, max_bytes: int) -> None:
        """No file that it writes may be longer. For a program that has not been given anything to do."""
        import resource  # late: most jobs start without it

        if hasattr(resource, "prlimit"):  # Linux
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
                limit = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, limit))

    async def read(self) -> bytes:
        """What it has written; empty at its end."""
        assert self._stdout
        pipe = self._stdout.fileno()
        os.set_blocking(pipe, False)  # our end only; a meter wants it as it was
        while True:
            try:
                return os.read(pipe, PIECE_BYTES)
            except BlockingIOError:
                await _until(pipe, self._loop.add_reader, self._loop.remove_reader)

    async def write(self, data: bytes) -> None:
        assert self._stdin
        pipe, view = self._stdin.fileno(), memoryview(data)
        os.set_blocking(pipe, False)
        with suppress(BrokenPipeError):  # its exit code will say why
            while view:
                try:
                    view = view[os.write(pipe, view) :]
                except BlockingIOError:
                    await _until(pipe, self._loop.add_writer, self._loop.remove_writer)

    async def write_all(self, data: bytes) -> None:
        await self.write(data)
        self.close_input()

    def close_input(self) -> None:
        if self._stdin:
            self._stdin.close()

    def into(self, other: Program, allowed: Callable[[], int]) -> Meter:
        """From now on `other` reads what this one writes."""
        assert self._stdout
        assert other._stdin
        meter = Meter(self._stdout, other._stdin, allowed)
        self._stdout = other._stdin = None  # they are the meter's
        return meter

    async def check(self, *, may_be_cut: bool = False) -> None:
        """Raises `ArtifactFailed` unless it ended well; whose reader ended before it `may_be_cut`."""
        code = await self._child.wait()
        if code == 0 or (may_be_cut and code == -signal.SIGPIPE):
            return
        if code == -signal.SIGXFSZ:
            raise ArtifactFailed(f"{self.name} failed: a file is larger than the limit")
        self._said.seek(0)
        lines = self._said.read(_SAID_BYTES).decode(errors="replace").strip().splitlines()
        raise ArtifactFailed(f"{self.name} failed: {lines[0] if lines else f'exit code {code}'}")

    async def close(self) -> None:
        """It has ended afterwards."""
        self._child.signal(signal.SIGKILL)
        await self._child.wait()
        for pipe in (self._stdin, self._stdout, self._said):
            if pipe:
                pipe.close()


async def _until(pipe: int, watch: Callable[..., object], unwatch: Callable[[int], object]) -> None:
    ready = asyncio.Event()
    watch(pipe, ready.set)
    try:
        await ready.wait()
    finally:
        unwatch(pipe)


class Meter:
    """Moves what one program writes to another one, by a thread, until it is more than `allowed`."""

    def __init__(self, source: IO[bytes], target: IO[bytes], allowed: Callable[[], int]) -> None:
        self._source = source
        self._target = target
        self._allowed = allowed
        self.bytes = 0
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while moved := _move(self._source.fileno(), self._target.fileno()):
                self.bytes += moved
                if self.bytes > self._allowed():
                    self.is_over = True
                    return
        except BrokenPipeError:  # who reads has ended: its exit code says why
            return
        finally:
            self._source.close()
            self._target.close()

    async def ended(self) -> None:
        await asyncio.to_thread(self._thread.join)


def _move(source: int, target: int) -> int:
    """How many bytes; 0 at the end."""
    if hasattr(os, "splice"):  # Linux: nothing is copied
        return os.splice(source, target, _PIPE_BYTES)
    data = os.read(source, PIECE_BYTES)
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return len(data)
