"""Starts the child that imports the workflows, and reads what it found. Nothing of theirs runs in this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.compiler.messages import Imported, Importing, Message, Request

IMPORT_LIMIT_S = 20.0
"""Of one module."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
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
        try:
            out, err = self._process.communicate(
                msgspec.json.encode(request), timeout=(self._limit_s + 1) * (len(self._modules) + 1)
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError("the workflows could not be imported in time") from error
        finally:
            self._kill()
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
        if "Timeout" in said:
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
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
