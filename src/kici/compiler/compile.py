"""One compile: everything under `.kici/` → the lock file's bytes, or all that is wrong.

Used by `kici compile`, `kici preview` and `kici run local`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from kici.compiler.collect import IMPORT_LIMIT_S, Collecting
from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.compiler.files import list_files
from kici.compiler.sources import Sources, unlisted
from kici.engine import lockfile
from kici.engine.lockfile import LockFile, LockWorkflow


class Compiled(Struct, frozen=True):
    lock: LockFile | None
    """None if there are problems."""
    data: bytes
    """What `.kici/kici.lock.json` is to hold; empty if there are problems."""
    problems: tuple[Diagnostic, ...]
    """All that were found, in the order of the files."""
    warnings: tuple[Diagnostic, ...]


def compile_directory(root: Path, *, strict: bool = False, limit_s: float = IMPORT_LIMIT_S) -> Compiled:
    """Compile the workflows of the repository at `root`. With `strict` warnings are problems.

    `limit_s` bounds the import of one module. Raises `CompileError` where there is nothing to compile.
    """
    root = root.resolve()
    listing = list_files(root)
    modules = listing.workflow_modules()
    if not modules:
        raise CompileError(f"{root / '.kici/workflows'} has no modules: `kici init` makes the first workflow")
    collecting = Collecting(root, modules, limit_s=limit_s)
    try:
        # While the child imports the workflows.
        from kici.compiler import check

        digests = listing.digests()
        sources = Sources(listing.files)
        warnings = [*listing.warnings, *sources.unsafe_commands()]
        imported = collecting.result()
    finally:
        collecting.close()
    workflows = tuple(
        msgspec.structs.replace(workflow, content_hash=_content_hash(sources.closure(_module(workflow)), digests))
        for workflow in sorted(imported.workflows, key=lambda one: (one.source.file, one.source.line, one.export))
    )
    problems = [*listing.problems, *imported.problems, *check.problems(workflows)]
    problems += unlisted(imported.modules, listing.files)
    if not workflows and not problems:
        raise CompileError("no module under .kici/workflows/ holds a workflow: write ci = workflow(…)")
    warnings += check.warnings(workflows)
    if strict:
        problems += warnings
        warnings = []
    if not problems:
        lock = LockFile(lockfile.SCHEMA_VERSION, _lock_hash(digests, workflows), digests, workflows)
        data = lockfile.encode(lock)
        if len(data) <= lockfile.MAX_BYTES:
            return Compiled(lock, data, (), tuple(sorted(set(warnings))))
        limit = f"the limit is {lockfile.MAX_BYTES:,}: split the workflows over repositories"
        problems.append(Diagnostic(lockfile.PATH, 0, "", f"would have {len(data):,} bytes; {limit}"))
    return Compiled(None, b"", tuple(sorted(set(problems))), tuple(sorted(set(warnings))))


def _module(workflow: LockWorkflow) -> str:
    return workflow.source.file.removeprefix(".kici/")


def _content_hash(modules: tuple[str, ...], digests: dict[str, str]) -> str:
    listed = "".join(f"{digests[path]} {path}\n" for path in modules if path in digests)
    return hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()


def _lock_hash(digests: dict[str, str], workflows: tuple[LockWorkflow, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode((digests, workflows), order="sorted")).hexdigest()
