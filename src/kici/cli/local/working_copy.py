"""A copy of the working tree for one job: what is committed and what has changed, with git around it.

Files that git ignores are not copied, as they would not be there remotely; neither are the secrets. The copy's git
borrows the objects of the real repository, so making it does not depend on the history's length.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kici.errors import KiciError

NEVER = (b".kici/.secrets",)
_LIMIT_S = 600
_FEW = 300
"""Files up to which copying them here is quicker than starting `tar` twice."""
_QUIET = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": os.devnull,
    "GIT_CONFIG_KEY_1": "advice.detachedHead",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "core.fsmonitor",
    "GIT_CONFIG_VALUE_2": "false",
}


class CopyFailed(KiciError):
    code = "copy_failed"


def listed(root: Path) -> tuple[bytes, ...]:
    """Paths of what a copy holds: tracked files that exist, and untracked ones that are not ignored."""
    done = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], root, check=False)
    if done.returncode == 0:
        paths = {path for path in done.stdout.split(b"\0") if path}
    else:  # no repository
        paths = set(_walk(root))
    base = os.fsencode(root)
    return tuple(path for path in sorted(paths) if path not in NEVER and os.path.lexists(os.path.join(base, path)))


class Copies(Struct, frozen=True):
    """Makes copies of one working tree."""

    root: Path
    files: tuple[bytes, ...]
    alone: bool
    """They must not need the real repository, which a box cannot see."""

    def make(self, destination: Path) -> None:
        """Fill an empty directory. Raises `CopyFailed`."""
        if (self.root / ".git").exists():
            _clone(self.root, destination, alone=self.alone)
        _copy(self.root, self.files, destination)


def copy_kici(root: Path, files: Mapping[str, str], destination: Path) -> None:
    """The files under `.kici/` that the lock lists: the same that an agent would load."""
    for path in files:
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / ".kici" / path, target)


def copy_packages(packages: str, destination: Path) -> None:
    shutil.copytree(packages, destination, symlinks=True, dirs_exist_ok=True)


def empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def hand_over(directory: Path, uid: int | None) -> None:
    """To the user that the steps run as."""
    if uid is not None:
        _run(["chown", "--recursive", "--no-dereference", f"{uid}:{uid}", "--", str(directory)], directory)


def _clone(root: Path, destination: Path, *, alone: bool) -> None:
    how = "--no-hardlinks" if alone else "--shared"
    _run(["git", "clone", "--quiet", "--no-checkout", how, "--", str(root), str(destination)], root)
    # So that `git status` compares with what is staged here, and finds what has changed.
    index = Path(os.fsdecode(_run(["git", "rev-parse", "--git-path", "index"], root).stdout.rstrip(b"\n")))
    if (root / index).is_file():
        shutil.copyfile(root / index, destination / ".git" / "index")


def _copy(root: Path, files: Sequence[bytes], destination: Path) -> None:
    if len(files) <= _FEW:
        for path in files:
            _copy_one(os.path.join(os.fsencode(root), path), os.path.join(os.fsencode(destination), path))
        return
    pack = ["tar", "--create", "--file=-", "--no-recursion", "--null", "--verbatim-files-from", "--files-from=-"]
    unpack = ["tar", "--extract", "--file=-", "--no-same-owner"]
    with (
        subprocess.Popen(pack, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as packing,
        subprocess.Popen(unpack, cwd=destination, stdin=packing.stdout) as unpacking,
    ):
        assert packing.stdin
        assert packing.stdout
        packing.stdout.close()
        with packing.stdin as names:
            names.write(b"".join(b"./" + path + b"\0" for path in files))
        failed = unpacking.wait(_LIMIT_S) or packing.wait(_LIMIT_S)
    if failed:
        raise CopyFailed(f"{root} could not be copied to {destination}: see what tar says above")


def _copy_one(source: bytes, target: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source) and not os.path.islink(source):  # a submodule
        os.makedirs(target, exist_ok=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _walk(root: Path) -> list[bytes]:
    found = []
    for directory, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [
            folder for folder in folders if folder not in (b".git", b"__pycache__", b".venv", b"node_modules")
        ]
        found += [os.path.relpath(os.path.join(directory, name), os.fsencode(root)) for name in names]
    return found


def _run(argv: Sequence[str], cwd: Path, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=os.environ | _QUIET, capture_output=True, check=False, timeout=_LIMIT_S
        )
    except FileNotFoundError:
        raise CopyFailed(f"{argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise CopyFailed(f"{' '.join(argv[:2])} took more than {_LIMIT_S} s") from None
    if check and done.returncode:
        raise CopyFailed(f"{' '.join(argv[:2])} failed: {done.stderr.decode(errors='replace').strip()}")
    return done
