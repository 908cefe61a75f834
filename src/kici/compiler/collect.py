"""Starts the child that imports the workflows, and reads what it found. Nothing of theirs runs in this process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec

from kici.compiler.child import Imported, Importing, Message, Request
from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError

IMPORT_LIMIT_S = 20.0
"""Of one module."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
KEPT_NOISE_BYTES = 64 * 1024
"""Of what the modules print."""
PIPE_END_S = 1.0
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)
"""What faulthandler says."""
_START = "import sys; sys.path.append(sys.argv[1]); from kici.compiler.child import main; main()"


class Collecting:
    """A started child. Start it early, and do other things until `result`."""

    def __init__(self, root: Path, modules: list[str], *, limit_s: float = IMPORT_LIMIT_S) -> None:
        self._root = root
        self._modules = modules
        self._limit_s = limit_s
        package_root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", _START, package_root],
            cwd=root,
            env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def result(self) -> Imported:
        """Wait for it. A child that dies gives what it was importing as a problem."""
        request = Request(str(self._root), self._modules, self._limit_s)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        found = _Kept(self._process.stdout, MAX_ANSWER_BYTES)
        noise = _Kept(self._process.stderr, KEPT_NOISE_BYTES)
        try:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
                stdin.write(msgspec.json.encode(request))
            self._process.wait((self._limit_s + 1) * (len(self._modules) + 1))
        except subprocess.TimeoutExpired as error:
            raise CompileError("the workflows could not be imported in time") from error
        finally:
            self._kill()
        out, err = found.all(), noise.all()
        messages = [msgspec.json.decode(line, type=Message) for line in out.splitlines() if line]
        if messages and isinstance(messages[-1], Imported):
            return messages[-1]
        importing = [message.module for message in messages if isinstance(message, Importing)]
        said = err.decode(errors="replace")
        if not importing:
            raise CompileError(f"the compiler's process failed:\n{said[-2000:]}")
        return Imported([], [self._died(importing[-1], said)], {})

    def _died(self, module: str, said: str) -> Diagnostic:
        file, line = f".kici/{module}", 0
        if _TIMEOUT.search(said):
            for frame in _FRAME.finditer(said):
                path = Path(frame["file"])
                if path.is_relative_to(self._root / ".kici"):
                    file, line = path.relative_to(self._root).as_posix(), int(frame["line"])
                    break
            message = f"importing it took more than {self._limit_s:g} s: is there a loop at its top level?"
        else:
            code = self._process.returncode
            message = f"importing it ended the process ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        return Diagnostic(file, line, "", message)

    def _kill(self) -> None:
        """The child and what the modules have started, which may hold the pipes open."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class _Kept:
    """Reads a pipe to its end in a thread, and keeps the last `size` bytes."""

    def __init__(self, pipe: IO[bytes], size: int) -> None:
        self._pipe = pipe
        self._size = size
        self._data = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def all(self) -> bytes:
        """What came. A process that has left the group may hold the pipe open: nobody waits for that one."""
        self._thread.join(PIPE_END_S)
        return self._data

    def _read(self) -> None:
        with self._pipe:
            while piece := self._pipe.read1(65_536):  # type: ignore[attr-defined]
                self._data = (self._data + piece)[-self._size :]
