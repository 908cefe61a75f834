"""Has the workflow modules imported in a fresh process under a time limit, and reads what they define.

A module may exit, crash the interpreter, start threads or run for ever: the answer is then a problem at its line. What
it prints appears on standard error.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.compiler.messages import Imported, Message, Request

IMPORT_LIMIT_S = 20.0
"""Of one module."""
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")
"""How faulthandler writes what is not ASCII."""
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ', re.MULTILINE)


class Collecting:
    """The conversation with a started child. `ask`, do other things until `result`; `close` it in any case."""

    def __init__(self, child: subprocess.Popen[bytes], root: Path, *, limit_s: float = IMPORT_LIMIT_S) -> None:
        self._child = child
        self._root = root
        self._limit_s = limit_s
        self._whole_limit_s = 0.0

    def ask(self, modules: tuple[str, ...], packages: str = "") -> None:
        """Say what to import, as paths below `.kici/`, and where their packages are. Once."""
        self._whole_limit_s = (self._limit_s + 1) * (len(modules) + 1)
        assert self._child.stdin
        # It may have died; `result` tells.
        with suppress(BrokenPipeError), self._child.stdin as request:
            request.write(msgspec.json.encode(Request(str(self._root), modules, self._limit_s, packages)))
        self._child.stdin = None

    def result(self) -> Imported:
        """What the modules define. A child that dies gives what it was importing as a problem."""
        try:
            answer, _ = self._child.communicate(timeout=self._whole_limit_s)
        except subprocess.TimeoutExpired as error:
            raise CompileError("the workflows could not be imported in time") from error
        finally:
            self.close()
        return self._understand(answer)

    def close(self) -> None:
        """Kill the child and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):  # all gone; macOS says EPERM for zombies
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe:
                pipe.close()

    def _understand(self, answer: bytes) -> Imported:
        path = ""
        lines = answer.split(b"\n")
        for number, line in enumerate(lines):
            try:
                said: Message = msgspec.json.decode(line, type=Message)
            except msgspec.DecodeError:
                dump = b"\n".join(lines[number:]).decode(errors="replace")
                return Imported((), (self._death(path, dump),), ())
            if isinstance(said, Imported):
                return said
            path = said.module
        raise AssertionError("an answer ends with an empty line")

    def _death(self, path: str, dump: str) -> Diagnostic:
        """`dump` is what faulthandler wrote, innermost frame first; empty if the child was killed or left."""
        file, line = f".kici/{path}" if path else "", 0
        root = os.path.realpath(self._root)
        for frame in _FRAME.finditer(dump):
            real = os.path.realpath(_ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), frame["file"]))
            if real.startswith(os.path.join(root, ".kici") + os.sep):
                file, line = os.path.relpath(real, root).replace(os.sep, "/"), int(frame["line"])
                break
        ended = dump.partition("\n")[0].strip() or self._how_it_ended()
        if dump.startswith("Timeout"):
            ended = f"importing it took more than {self._limit_s:g} s"
        elif not path:
            raise CompileError(f"the compiler's process ended before it imported anything ({ended})")
        why = f"{ended}: a workflow module only defines; move what it does into a step"
        return Diagnostic(file, line, "import", why)

    def _how_it_ended(self) -> str:
        code = self._child.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"it ended the process ({how})"
