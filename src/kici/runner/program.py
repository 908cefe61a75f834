"""Programs whose input and output are pipes of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from kici.errors import KiciError
from kici.runner import pipes
from kici.runner.processes import Child

_SAID_BYTES = 65_536


class ArtifactFailed(KiciError):
    """Files could not be stored or fetched. The message says which and why."""

    code = "artifact_failed"
    status = 422


class Program:
    """It is a child like a command of the step, and ends with it."""

    def __init__(self, argv: Sequence[str], *, source: Program | None = None, discard_output: bool = False) -> None:
        """`source`: what it reads is what that one writes, which is not ours then."""
        self.name = argv[0]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        environment = {name: value for name, value in os.environ.items() if name != "TAR_OPTIONS"}
        try:
            self._process = subprocess.Popen(
                argv, stdin=source.output if source else subprocess.PIPE,
                stdout=subprocess.DEVNULL if discard_output else subprocess.PIPE,
                stderr=self._said, bufsize=0, start_new_session=True,
                env=environment | {"LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise ArtifactFailed(f"{self.name} cannot be started: {error.strerror}") from error
        if source is not None:
            source.close_output()
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for pipe in (self._stdin, self._stdout):
            if pipe is not None:
                pipes.widen(pipe.fileno())
        self._child = Child(self._process.pid, on_exit=self._ended)

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

    @property
    def input(self) -> int:
        """The end of a pipe."""
        assert self._stdin
        return self._stdin.fileno()

    @property
    def output(self) -> int:
        """The end of a pipe."""
        assert self._stdout
        return self._stdout.fileno()

    def close_input(self) -> None:
        if self._stdin:
            self._stdin.close()

    def close_output(self) -> None:
        """It is told so by `SIGPIPE` if it writes on."""
        if self._stdout:
            self._stdout.close()

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

    def said_last(self) -> str:
        """The last line of its standard error."""
        self._said.seek(max(self._said.seek(0, os.SEEK_END) - _SAID_BYTES, 0))
        return self._said.read().decode(errors="replace").strip().rpartition("\n")[2]

    async def close(self) -> None:
        """It has ended afterwards."""
        self._child.signal(signal.SIGKILL)
        await self._child.wait()
        for pipe in (self._stdin, self._stdout, self._said):
            if pipe:
                pipe.close()


class Programs:
    """Some that work together. All have ended when it is left, and nothing feeds them any more."""

    def __init__(self) -> None:
        self._programs: list[Program] = []
        self._feeds: list[asyncio.Task[None]] = []

    def start(self, argv: Sequence[str], *, source: Program | None = None, discard_output: bool = False) -> Program:
        """See `Program`. Raises `ArtifactFailed`."""
        self._programs.append(Program(argv, source=source, discard_output=discard_output))
        return self._programs[-1]

    def feed(self, program: Program, work: Coroutine[Any, Any, None], source: Program | None = None) -> None:
        """Do what writes into a program, perhaps from another one. Where either ends early, its exit code says why."""

        async def fed() -> None:
            try:
                with suppress(BrokenPipeError):
                    await work
            finally:
                program.close_input()
                if source is not None:
                    source.close_output()

        self._feeds.append(asyncio.create_task(fed()))

    async def fed(self) -> None:
        """All that feeds them is done."""
        await asyncio.gather(*self._feeds)

    async def __aenter__(self) -> Programs:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for feed in self._feeds:
            feed.cancel()
        await asyncio.gather(*self._feeds, return_exceptions=True)
        for program in self._programs:
            await program.close()
