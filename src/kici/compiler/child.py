"""The process that imports the workflows: `python -I -m kici.compiler.child`, or `main` by the same words.

One request comes on stdin, messages go to the descriptor that it names: `Importing` before each module, `Imported`
after it. What the modules print, or do to stdin and stdout, does not reach either.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from typing import BinaryIO

import msgspec

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.lower import Lowering
from kici.compiler.messages import Imported, Importing, Message, Request
from kici.sdk import loading, problems
from kici.sdk.errors import DefinitionError
from kici.sdk.workflows import Workflow


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    out = os.fdopen(os.dup(1), "wb")
    # Whatever the modules print goes to stderr, which nobody decodes.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of the process
    faulthandler.enable()
    _send(out, _collect(request, out))
    # Threads and atexit hooks of the modules have no say in how this ends.
    os._exit(0)


def _collect(request: Request, out: BinaryIO) -> Imported:
    refusals = problems.collect()
    lowering = Lowering(request.root)
    kici_dir = os.path.join(request.root, ".kici")
    loading.prepare(kici_dir)
    found: dict[int, tuple[Workflow, str, str]] = {}
    for path in request.modules:
        _send(out, Importing(path))
        faulthandler.dump_traceback_later(request.limit_s, exit=True)
        try:
            module = loading.load(path)
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a module may raise anything, and the others go on
            lowering.problems.append(_import_problem(error, path, lowering, kici_dir))
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        for export, workflow in loading.exports(module):
            home = os.path.realpath(workflow.location.file) == os.path.realpath(str(module.__file__))
            if id(workflow) not in found or (home and not _at_home(found[id(workflow)], kici_dir)):
                found[id(workflow)] = workflow, export, path
    workflows = [lowering.workflow(one, export=export, module=path) for one, export, path in found.values()]
    for refusal in refusals:
        lowering.note(refusal.location, refusal.subject, refusal.message)
    _same_names(found, lowering)
    return Imported(workflows, lowering.problems, _loaded(kici_dir))


def _at_home(entry: tuple[Workflow, str, str], kici_dir: str) -> bool:
    workflow, _, path = entry
    return os.path.realpath(workflow.location.file) == os.path.realpath(os.path.join(kici_dir, path))


def _same_names(found: dict[int, tuple[Workflow, str, str]], lowering: Lowering) -> None:
    first: dict[str, Workflow] = {}
    for workflow, _, _ in found.values():
        if workflow.name in first:
            other = first[workflow.name].location
            where = f"{lowering.relative(other.file)}:{other.line}"
            lowering.note(
                workflow.location,
                f"workflow {workflow.name!r}",
                f"another workflow has this name ({where}): rename one",
            )
        first.setdefault(workflow.name, workflow)


def _import_problem(error: BaseException, path: str, lowering: Lowering, kici_dir: str) -> Diagnostic:
    file, line = f".kici/{path}", 0
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Diagnostic(lowering.relative(error.filename), error.lineno, "", f"syntax error: {error.msg}")
    for frame in traceback.extract_tb(error.__traceback__):
        if os.path.realpath(frame.filename).startswith(os.path.realpath(kici_dir) + os.sep):
            file, line = lowering.relative(frame.filename), frame.lineno or 0
    if isinstance(error, SystemExit):
        return Diagnostic(file, line, "", "it ends the process when it is imported: a workflow only defines things")
    if isinstance(error, DefinitionError):
        return Diagnostic(file, line, "", str(error))
    said = " ".join(str(error).split())
    return Diagnostic(file, line, "", f"it cannot be imported: {type(error).__name__}{': ' if said else ''}{said}")


def _loaded(kici_dir: str) -> dict[str, str]:
    base = os.path.realpath(kici_dir) + os.sep
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.realpath(file).startswith(base) and file.endswith(".py"):
            found[name] = os.path.realpath(file)[len(base) :].replace(os.sep, "/")
    return dict(sorted(found.items()))


def _send(out: BinaryIO, message: Message) -> None:
    out.write(msgspec.json.encode(message) + b"\n")
    out.flush()


if __name__ == "__main__":
    main()
