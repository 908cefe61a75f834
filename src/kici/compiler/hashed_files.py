"""`hash_files` of workflows: files outside `.kici/` whose change is a change of the workflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.files import MAX_FILE_BYTES, listed_by_git, listed_in_directory
from kici.engine import kici_files
from kici.engine.errors import PatternError
from kici.engine.lockfile import LockWorkflow
from kici.engine.patterns import matches

MAX_HASHED = 1_000
"""Of one workflow."""


def with_digests(
    root: Path, workflows: Sequence[LockWorkflow]
) -> tuple[tuple[LockWorkflow, ...], tuple[Diagnostic, ...]]:
    """The workflows with the digests of the files that their `hash_files` name, and what is wrong with these.

    The files are those that git has or would add. Dotfiles count; what git ignores, and what stands behind a symbolic
    link, does not.
    """
    if not any(workflow.hash_files for workflow in workflows):
        return tuple(workflows), ()
    tracked, untracked = listed_by_git(root) or (set(), listed_in_directory(root))
    paths = sorted(tracked | untracked)
    digests: dict[str, str] = {}
    found: list[LockWorkflow] = []
    problems: list[Diagnostic] = []
    for workflow in workflows:
        try:
            chosen = [path for path in paths if workflow.hash_files and matches(workflow.hash_files, path)]
        except PatternError as error:
            problems.append(_at(workflow, str(error)))
            continue
        if workflow.hash_files and not chosen:
            problems.append(_at(workflow, f"no file of the repository matches {', '.join(workflow.hash_files)}"))
        if len(chosen) > MAX_HASHED:
            problems.append(_at(workflow, f"{len(chosen):,} files match; the limit is {MAX_HASHED:,}"))
            continue
        found.append(replace(workflow, hashed_files=_digests(root, chosen, digests)))
    return tuple(found), tuple(problems)


def _digests(root: Path, paths: Iterable[str], known: dict[str, str]) -> dict[str, str]:
    for path in paths:
        whole = root / path
        if path in known or whole.is_symlink() or not whole.is_file():
            continue
        if whole.stat().st_size <= MAX_FILE_BYTES:
            known[path] = kici_files.digest(whole.read_bytes())
    return {path: known[path] for path in paths if path in known}


def _at(workflow: LockWorkflow, message: str) -> Diagnostic:
    return Diagnostic(
        workflow.source.file, workflow.source.line, f"workflow {workflow.name!r}", f"hash_files: {message}"
    )
