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
_LS_FILES = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard", "--", ".")
"""Each path has a letter and a space in front; `?` is for untracked ones."""
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
    tracked, untracked = listed_by_git(kici) or (set(), listed_in_directory(kici))
    files: dict[str, bytes] = {}
    linked: dict[Path, bool] = {kici: False}
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
        read = _read(kici / path, linked)
        if isinstance(read, bytes):
            files[path] = read
        elif read:
            problems.append(Diagnostic(shown, 0, "", read))
    if len(files) > MAX_FILES:
        raise CompileError(f".kici has {len(files):,} files; the limit is {MAX_FILES:,}: keep data elsewhere")
    return Listing(files, tuple(problems), tuple(warnings))


def listed_by_git(directory: Path) -> tuple[set[str], set[str]] | None:
    """Tracked and untracked paths below a directory, without ignored ones; None outside a repository.

    Raises `CompileError` if git fails.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *_LS_FILES],
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
    lines = [os.fsdecode(line) for line in done.stdout.split(b"\0") if line]
    return {line[2:] for line in lines if line[0] != "?"}, {line[2:] for line in lines if line[0] == "?"}


def listed_in_directory(top: Path) -> set[str]:
    """Outside a repository."""
    found = set()
    for directory, folders, names in os.walk(top):
        folders[:] = [folder for folder in folders if folder not in ("__pycache__", ".venv", ".git")]
        base = Path(directory).relative_to(top)
        found |= {(base / name).as_posix() for name in names}
    return found


def _read(whole: Path, linked: dict[Path, bool]) -> bytes | str:
    """The content, or why it cannot be listed; empty text for a tracked file that was deleted."""
    try:
        status = whole.lstat()
        mode, size = status.st_mode, status.st_size
        if _behind_link(whole.parent, linked):
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


def _behind_link(directory: Path, linked: dict[Path, bool]) -> bool:
    """Whether it or one above it is a symbolic link. `linked` remembers, and holds where to end."""
    if directory not in linked:
        linked[directory] = directory.is_symlink() or _behind_link(directory.parent, linked)
    return linked[directory]
