"""Which files under `.kici/` the lock file lists: what git has or would add, without the lock file itself."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from msgspec import Struct

from kici.compiler.diagnostics import Diagnostic
from kici.compiler.errors import CompileError
from kici.engine import kici_files

LOCK = "kici.lock.json"
SECRETS = ".secrets"
"""Of `kici run local`; never listed."""
GIT_LIMIT_S = 60
MAX_FILES = 10_000
MAX_FILE_BYTES = 50 * 1024 * 1024


class Listing(Struct, frozen=True):
    files: dict[str, bytes]
    """Path below `.kici/` (with `/`) → content; sorted."""
    problems: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]

    def digests(self) -> dict[str, str]:
        return {path: kici_files.digest(data) for path, data in self.files.items()}

    def workflow_modules(self) -> tuple[str, ...]:
        """What is imported: `workflows/**/*.py` without names that begin with `_` or a dot. Sorted."""
        return tuple(
            path
            for path in self.files
            if path.startswith("workflows/")
            and path.endswith(".py")
            and not any(part.startswith(("_", ".")) for part in path.split("/"))
        )


def list_files(root: Path) -> Listing:
    """Read every file of `.kici/`. Raises `CompileError` if there is no such directory, or git fails."""
    kici = root / ".kici"
    if kici.is_symlink() or not (kici / "workflows").is_dir():
        raise CompileError(f"{root} has no .kici/workflows/: `kici init` makes the first workflow")
    tracked, untracked = _of_git(root) or (set(), _of_directory(kici))
    files: dict[str, bytes] = {}
    problems, warnings = [], []
    for path in sorted(tracked | untracked):
        shown = f".kici/{path}"
        if path == LOCK:
            continue
        if path == SECRETS:
            if path in tracked:
                problems.append(
                    Diagnostic(
                        shown, 0, "", "it is committed: remove it from git, and change the secrets that it holds"
                    )
                )
            else:
                warnings.append(Diagnostic(shown, 0, "", "git does not ignore it: add it to .gitignore"))
            continue
        if path not in tracked and "__pycache__" in path.split("/"):
            continue
        read = _read(kici, path)
        if isinstance(read, bytes):
            files[path] = read
        elif read:
            problems.append(Diagnostic(shown, 0, "", read))
    if len(files) > MAX_FILES:
        raise CompileError(f".kici has {len(files):,} files; the limit is {MAX_FILES:,}: keep data elsewhere")
    return Listing(files, tuple(problems), tuple(warnings))


def _of_git(root: Path) -> tuple[set[str], set[str]] | None:
    """Tracked and untracked paths below `.kici/`; None outside a repository."""
    tracked = _ls_files(root, "--cached")
    if tracked is None:
        return None
    return tracked, _ls_files(root, "--others", "--exclude-standard") or set()


def _ls_files(root: Path, *which: str) -> set[str] | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root / ".kici"), "-c", "core.fsmonitor=false", "ls-files", "-z", *which, "--", "."],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            check=False,
            timeout=GIT_LIMIT_S,
        )
    except FileNotFoundError as error:
        raise CompileError("git is not installed: it knows which files belong to the repository") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"git ls-files took more than {GIT_LIMIT_S} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if "not a git repository" in said:
            return None
        raise CompileError(f"git ls-files failed: {said}")
    return {os.fsdecode(path) for path in done.stdout.split(b"\0") if path}


def _of_directory(kici: Path) -> set[str]:
    found = set()
    for directory, folders, names in os.walk(kici):
        folders[:] = [folder for folder in folders if folder not in ("__pycache__", ".venv", ".git")]
        base = Path(directory).relative_to(kici)
        found |= {(base / name).as_posix() for name in names}
    return found


def _read(kici: Path, path: str) -> bytes | str:
    """The content, or why it cannot be listed; empty text for a tracked file that was deleted."""
    whole = kici / path
    try:
        status = whole.lstat()
        mode, size = status.st_mode, status.st_size
        if any(parent.is_symlink() for parent in whole.parents if parent != kici and kici in parent.parents):
            return "it stands behind a symbolic link: commit the files themselves"
        if stat.S_ISLNK(mode):
            return "it is a symbolic link: commit the file itself"
        if not stat.S_ISREG(mode):
            return "it is no regular file (a submodule?): commit the files themselves"
        if size > MAX_FILE_BYTES:
            return f"it is larger than {MAX_FILE_BYTES // 1024**2} MiB: keep it outside .kici/"
        return whole.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
