"""One compile: everything under `.kici/` → the lock file's bytes, or all that is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from kici.compiler import files, fstrings
from kici.compiler.closure import closure
from kici.compiler.collect import IMPORT_LIMIT_S, Collecting
from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.engine import lockfile
from kici.engine.lockfile import LockFile, LockWorkflow


class Compiled(Struct, frozen=True):
    lock: LockFile | None
    """None if there are problems."""
    data: bytes
    """What `.kici/kici.lock.json` is to hold; empty if there are problems."""
    problems: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]


def compile_directory(root: Path, *, strict: bool = False, limit_s: float = IMPORT_LIMIT_S) -> Compiled:
    """Compile the workflows of the repository at `root`. With `strict` warnings are problems.

    `limit_s` bounds the import of one module. Raises `CompileError` where there is nothing to compile.
    """
    root = root.resolve()
    if not (root / files.KICI / "workflows").is_dir():
        raise CompileError(f"{root} has no .kici/workflows/: `kici init` makes the first workflow")
    digests, problems = files.listed(root)
    modules = files.modules(root, digests)
    if not modules:
        raise CompileError(f"{root / '.kici/workflows'} has no modules: `kici init` makes the first workflow")
    collecting = Collecting(root, modules, limit_s=limit_s)
    from kici.engine import plan  # the engine's libraries load while the child imports the workflows

    imported = collecting.result()
    problems += imported.problems
    sources = _sources(root, imported.names, problems)
    problems += [_unlisted(path) for path in sources if path not in digests]
    warnings = [found for path, text in sources.items() for found in fstrings.find(text, f"{files.KICI}/{path}")]
    if strict:
        problems += warnings
        warnings = []
    workflows = [_hashed(workflow, sources, imported.names) for workflow in imported.workflows]
    workflows.sort(key=lambda workflow: (workflow.source.file, workflow.source.line, workflow.export))
    if not problems:
        if not workflows:
            raise CompileError("no module under .kici/workflows/ holds a workflow: write ci = workflow(…)")
        for workflow in workflows:
            alone = LockFile(lockfile.SCHEMA_VERSION, "", {}, (workflow,))
            problems += [
                Diagnostic(workflow.source.file, workflow.source.line, "", problem) for problem in plan.validate(alone)
            ]
    if problems:
        return Compiled(None, b"", tuple(sorted(set(problems))), tuple(warnings))
    lock = LockFile(lockfile.SCHEMA_VERSION, _content_hash(digests, workflows), digests, tuple(workflows))
    data = lockfile.encode(lock)
    if len(data) > lockfile.MAX_BYTES:
        limit = f"the limit is {lockfile.MAX_BYTES:,}: split the workflows over repositories"
        return Compiled(None, b"", (Diagnostic(lockfile.PATH, 0, "", f"would have {len(data):,} bytes; {limit}"),), ())
    return Compiled(lock, data, (), tuple(warnings))


def _sources(root: Path, names: dict[str, str], problems: list[Diagnostic]) -> dict[str, str]:
    """Path → text of the modules that were imported, without a byte order mark."""
    found = {}
    for path in sorted(set(names.values())):
        try:
            found[path] = (root / files.KICI / path).read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            problems.append(
                Diagnostic(f"{files.KICI}/{path}", 0, "", f"it is not UTF-8 ({error.reason}): save it as UTF-8")
            )
    return found


def _unlisted(path: str) -> Diagnostic:
    message = "a workflow imports it, but git ignores it: take it out of .gitignore, no agent would have it"
    return Diagnostic(f"{files.KICI}/{path}", 0, "", message)


def _hashed(workflow: LockWorkflow, sources: dict[str, str], names: dict[str, str]) -> LockWorkflow:
    module = workflow.source.file.removeprefix(f"{files.KICI}/")
    if module not in sources:
        return workflow
    known = {name: path for name, path in names.items() if path in sources}
    digest = hashlib.sha256()
    for path in closure(module, sources, known):
        text = sources[path].replace("\r\n", "\n").replace("\r", "\n")
        digest.update(f"{path}\0{len(text)}\0{text}".encode())
    return msgspec.structs.replace(workflow, content_hash=digest.hexdigest())


def _content_hash(digests: dict[str, str], workflows: list[LockWorkflow]) -> str:
    return hashlib.sha256(msgspec.json.encode([digests, workflows], order="sorted")).hexdigest()
