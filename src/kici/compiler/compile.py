"""One compile: everything under `.kici/` → the lock file's bytes, or all that is wrong.

Used by `kici compile`, `kici preview` and `kici run local`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen

import msgspec
from msgspec import Struct

from kici.compiler import child_process
from kici.compiler.collect import IMPORT_LIMIT_S, Collecting
from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.compiler.files import list_files
from kici.compiler.hashed_files import with_digests
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
    notes: tuple[Diagnostic, ...] = ()
    """What costs time when the workflows run, and is meant so."""
    packages: str = ""
    """Where the workflows' own packages are on this machine; empty = they have none."""

    def needed(self) -> LockFile:
        """The lock file, for a command that can do nothing without one. Raises `CompileError` with all problems."""
        if self.lock is None:
            raise CompileError("the workflows do not compile:\n" + "\n".join(map(str, self.problems)))
        return self.lock


def compile_directory(
    root: Path,
    *,
    strict: bool = False,
    limit_s: float = IMPORT_LIMIT_S,
    child: Popen[bytes] | None = None,
    secrets: Callable[[], Mapping[str, str]] = dict,
) -> Compiled:
    """Compile the workflows of the repository at `root`. With `strict` warnings are problems.

    `limit_s` bounds the import of one module. `child` is one that `child_process` has started already. `secrets` is
    asked for tokens of private indexes, if there are such. Raises `CompileError` where there is nothing to compile.
    """
    root = root.resolve()
    collecting = Collecting(child or child_process.start(root), root, limit_s=limit_s)
    try:
        listing = list_files(root)
        modules = listing.workflow_modules()
        if not modules:
            raise CompileError(f"{root / '.kici/workflows'} has no modules: `kici init` makes the first workflow")
        sources = Sources(listing.files)
        packages = _packages(listing.files, sources, secrets)
        collecting.ask(modules, packages)
        # While the child imports the workflows.
        from kici.compiler import check

        digests = listing.digests()
        warnings = [*listing.warnings, *sources.unsafe_commands()]
        closures = {module: sources.closure(module) for module in modules}
        imported = collecting.result()
    finally:
        collecting.close()
    ordered = sorted(imported.workflows, key=lambda one: (one.source.file, one.source.line, one.export))
    hashed, unhashed = with_digests(root, ordered)
    workflows = tuple(
        msgspec.structs.replace(one, content_hash=_content_hash(closures[_module(one)], digests, one.hashed_files))
        for one in hashed
    )
    problems = [*listing.problems, *imported.problems, *unhashed, *check.problems(workflows)]
    problems += unlisted(imported.modules, listing.files)
    problems += check.registries(workflows, listing.files)
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
            notes = tuple(check.notes(workflows))
            return Compiled(lock, data, (), tuple(sorted(set(warnings))), notes, packages)
        limit = f"the limit is {lockfile.MAX_BYTES:,}: split the workflows over repositories"
        problems.append(Diagnostic(lockfile.PATH, 0, "", f"would have {len(data):,} bytes; {limit}"))
    return Compiled(None, b"", tuple(sorted(set(problems))), tuple(sorted(set(warnings))))


def _packages(files: Mapping[str, bytes], sources: Sources, secrets: Callable[[], Mapping[str, str]]) -> str:
    """Raises `KiciError` where what is declared cannot be installed.

    The workflows that name registries may import packages of these: so they are read from the sources, where they are
    written in plain text. For all others the shell's variables count.
    """
    if not files.keys() & {"pyproject.toml", "uv.lock"}:
        return ""
    from kici.dependencies import declared, here, registries  # late: few repositories have them

    wanted = declared.declared(files)
    if wanted is None:
        return ""
    named = list(sources.registries())
    tokens = registries.opened(wanted.project, named, secrets(), lenient=True) if named else {}
    return str(here.prepared(wanted, _say, tokens))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _module(workflow: LockWorkflow) -> str:
    """Path below `.kici/`."""
    return workflow.source.file.removeprefix(".kici/")


def _content_hash(modules: tuple[str, ...], digests: dict[str, str], hashed_files: Mapping[str, str]) -> str:
    listed = "".join(f"{digests[path]} {path}\n" for path in modules if path in digests)
    listed += "".join(f"{hashed_files[path]} ./{path}\n" for path in sorted(hashed_files))
    return hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()


def _lock_hash(digests: dict[str, str], workflows: tuple[LockWorkflow, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode((digests, workflows), order="sorted")).hexdigest()
