"""The files that the lock lists: tracked, or untracked and not ignored; never the lock itself or the secrets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.engine import kici_files

KICI = ".kici"
NEVER = frozenset({"kici.lock.json", ".secrets"})
MAX_FILES = 10_000
MAX_FILE_BYTES = 50 * 1024 * 1024


def listed(root: Path) -> tuple[dict[str, str], list[Diagnostic]]:
    """Path below `.kici/` → digest, sorted, and what cannot be listed."""
    found: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for path in sorted(_paths(root)):
        if path in NEVER or "__pycache__" in path.split("/"):
            continue
        file = root / KICI / path
        if file.is_symlink() or not file.is_file():
            if file.is_symlink():
                problems.append(_problem(path, "is a symbolic link: put the file itself there"))
            continue
        if file.stat().st_size > MAX_FILE_BYTES:
            problems.append(_problem(path, f"is larger than {MAX_FILE_BYTES // 1024**2} MiB: keep it outside .kici/"))
            continue
        found[path] = kici_files.digest(file.read_bytes())
    if len(found) > MAX_FILES:
        problems.append(
            Diagnostic(KICI, 0, "", f"has {len(found)} files; the limit is {MAX_FILES}: ignore what is no workflow")
        )
    return found, problems


def modules(root: Path, files: dict[str, str]) -> list[str]:
    """Modules below `.kici/workflows/` that may define workflows, sorted. Those with `_` in front are helpers."""
    return [
        path
        for path in sorted(files)
        if path.startswith("workflows/") and path.endswith(".py") and not path.rpartition("/")[2].startswith("_")
    ]


def _paths(root: Path) -> Iterator[str]:
    """By git, which knows what is ignored; by a walk where there is no repository."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "."],
            cwd=root / KICI,
            capture_output=True,
            check=False,
            timeout=60,
        )
    except FileNotFoundError as error:
        raise CompileError(
            "git is not installed: kici needs it to know which files belong to the repository"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CompileError("git ls-files took more than 60 s") from error
    if done.returncode == 0:
        yield from {os.fsdecode(path) for path in done.stdout.split(b"\0") if path}
        return
    for directory, folders, names in os.walk(root / KICI):
        folders[:] = [folder for folder in folders if folder not in ("__pycache__", ".venv", ".git")]
        for name in names:
            yield (Path(directory) / name).relative_to(root / KICI).as_posix()


def _problem(path: str, message: str) -> Diagnostic:
    return Diagnostic(f"{KICI}/{path}", 0, "", message)
