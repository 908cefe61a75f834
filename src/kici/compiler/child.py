"""The process in which workflow modules are imported. Started by `kici.compiler.collect`, never by hand.

What the modules print goes to standard error; the original standard output carries the answer alone. The process ends
by `os._exit`, so that threads and exit handlers of the modules cannot hold it.
"""

from __future__ import annotations

import faulthandler
import math
import os
import sys
import time
from functools import cache
from typing import BinaryIO

import msgspec

from kici.compiler import outputs_use
from kici.compiler.diagnostics import Diagnostic
from kici.compiler.lower import Lowering
from kici.compiler.messages import Imported, Importing, Message, Request
from kici.engine.lockfile import LockWorkflow
from kici.sdk import loading
from kici.sdk.errors import DefinitionError, Elsewhere, NotYet
from kici.sdk.problems import Refusal, collect
from kici.sdk.workflows import Workflow


def main() -> None:
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = sys.stdin.buffer.read()
    if not asked:
        os._exit(0)  # nobody wants it any more
    request = msgspec.json.decode(asked, type=Request)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    faulthandler.enable(file=answer)

    _say(answer, _Collection(request, answer).run())
    sys.stdout.flush()
    os._exit(0)


def _say(answer: BinaryIO, message: Message) -> None:
    answer.write(msgspec.json.encode(message) + b"\n")
    answer.flush()


class _Watchdog:
    """Ends this process when one module takes too long, and says where each thread was.

    It is a thread of C, so it ends also what no Python handler could. A module gets up to a twentieth more than the
    limit: each new start of that thread costs half a millisecond.
    """

    def __init__(self, limit_s: float, answer: BinaryIO) -> None:
        self._limit_s = limit_s
        self._answer = answer
        self._started = -math.inf

    def next(self) -> None:
        """A module begins."""
        now, more = time.monotonic(), self._limit_s / 20
        if now - self._started > more:
            faulthandler.dump_traceback_later(self._limit_s + more, exit=True, file=self._answer)
            self._started = now

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()


class _Collection:
    def __init__(self, request: Request, answer: BinaryIO) -> None:
        self._request = request
        self._answer = answer
        self._root = os.path.realpath(request.root)
        self._kici = os.path.join(self._root, ".kici")
        self._problems: list[Diagnostic] = []

    def run(self) -> Imported:
        refusals = collect()
        loading.prepare(self._kici, self._request.packages)
        watchdog = _Watchdog(self._request.limit_s, self._answer)
        found: list[tuple[str, str, Workflow]] = []
        for path in self._request.modules:
            _say(self._answer, Importing(path))
            watchdog.next()
            try:
                module = loading.load(path)
            except BaseException as error:  # noqa: BLE001 - whatever a module raises, sys.exit too, is its own error
                self._problems.append(self._import_problem(path, error))
                continue
            found += [(path, export, workflow) for export, workflow in loading.exports(module)]
        watchdog.stop()
        workflows = self._lower(found)
        self._problems += [self._refused(refusal) for refusal in refusals]
        return Imported(tuple(workflows), tuple(sorted(set(self._problems))), self._imported())

    def _lower(self, found: list[tuple[str, str, Workflow]]) -> list[LockWorkflow]:
        lowering = Lowering(self._root)
        lowered = []
        for path, export, workflow in self._homes(found):
            lowered.append(lowering.workflow(workflow, path, export))
            outputs_use.check(workflow)
        return lowered

    def _homes(self, found: list[tuple[str, str, Workflow]]) -> list[tuple[str, str, Workflow]]:
        """Each workflow once: in the module that it is written in, else in the first that holds it."""
        homes: dict[int, tuple[str, str, Workflow]] = {}
        for path, export, workflow in found:
            written_here = self._relative(workflow.location.file) == f".kici/{path}"
            known = homes.get(id(workflow))
            if known is None or (written_here and known[0] != path):
                homes[id(workflow)] = (path, export, workflow)
        return list(homes.values())

    def _import_problem(self, path: str, error: BaseException) -> Diagnostic:
        if isinstance(error, SyntaxError) and error.filename:
            return Diagnostic(self._relative(error.filename), error.lineno or 0, "syntax error", error.msg)
        import traceback

        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.realpath(frame.filename).startswith(self._kici + os.sep)
        ]
        file = self._relative(own[-1].filename) if own else f".kici/{path}"
        line = (own[-1].lineno or 0) if own else 0
        return Diagnostic(file, line, "import", self._why(error))

    def _why(self, error: BaseException) -> str:
        match error:
            case SystemExit():
                return "it calls sys.exit: a workflow module only defines; move what it does into a step"
            case NotYet() | Elsewhere() | DefinitionError():
                return str(error)
            case ModuleNotFoundError() if error.name and self._is_sibling(error.name):
                return f"there is no module {error.name!r}: write `from workflows.{error.name} import …`"
            case ImportError() if "partially initialized module" in str(error):
                return f"{error}: move what both modules need into a third one"
            case _:
                import traceback

                said = "".join(traceback.format_exception_only(error)).strip()
                return " ".join(said.split())

    def _is_sibling(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._kici, loading.PACKAGE, f"{name.partition('.')[0]}.py"))

    def _refused(self, refusal: Refusal) -> Diagnostic:
        return Diagnostic(
            self._relative(refusal.location.file), refusal.location.line, refusal.subject, refusal.message
        )

    def _relative(self, file: str) -> str:
        real = _real(file)
        below = real.startswith(self._root + os.sep)
        return (os.path.relpath(real, self._root) if below else real).replace(os.sep, "/")

    def _imported(self) -> tuple[str, ...]:
        """Found below `.kici/` by its place on the module path, which is resolved already."""
        below = self._kici + os.sep
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        own = {file for file in files if isinstance(file, str) and file.startswith(below)}
        return tuple(sorted(file.removeprefix(below).replace(os.sep, "/") for file in own))


@cache
def _real(file: str) -> str:
    return os.path.realpath(file)
