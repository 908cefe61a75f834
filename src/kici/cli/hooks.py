"""Puts the hook that compiles before a commit where the repository's hooks are managed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from msgspec import Struct

from kici.errors import KiciError

MARK = "kici compile"
_SCRIPT = """\
# kici: the lock file belongs to the workflows of this commit
if ! git diff --cached --quiet -- .kici; then
  kici compile && git add .kici/kici.lock.json || exit 1
fi
"""
_PRE_COMMIT = """\
{indent}- repo: local
{indent}  hooks:
{indent}    - id: kici-compile
{indent}      name: kici compile
{indent}      entry: kici compile
{indent}      language: system
{indent}      files: ^\\.kici/
{indent}      pass_filenames: false
"""
_SHELLS = re.compile(r"#!.*\b(?:ba|da|z)?sh\b")


class Installed(Struct, frozen=True):
    manager: str
    """`pre-commit`, `husky` or `git`."""
    path: str
    new: bool
    """False: it was there."""


def install(root: Path, *, raw: bool = False) -> Installed:
    """Raises `KiciError` with what to write by hand where kici does not dare to."""
    config = root / ".pre-commit-config.yaml"
    if not raw and config.exists():
        return _in_pre_commit(config)
    if not raw and (root / "lefthook.yml").exists():
        raise KiciError(f"lefthook.yml: add a pre-commit command by hand, `run: {MARK}`; or use --git")
    if not raw and (root / ".husky").is_dir():
        return Installed("husky", ".husky/pre-commit", _in_script(root / ".husky" / "pre-commit"))
    path = _git_hooks(root) / "pre-commit"
    return Installed("git", str(path), _in_script(path))


def _in_pre_commit(config: Path) -> Installed:
    text = config.read_text("utf-8")
    if MARK in text or "kici-check" in text:
        return Installed("pre-commit", config.name, new=False)
    keys = re.findall(r"^([A-Za-z_]+):(.*)$", text, re.MULTILINE)
    entries = re.findall(r"^( *)- repo:", text, re.MULTILINE)
    if not keys or keys[-1][0] != "repos" or keys[-1][1].strip():
        block = _PRE_COMMIT.format(indent="  ")
        raise KiciError(f"{config.name}: `repos` is not its last key; add this below it by hand:\n{block}")
    block = _PRE_COMMIT.format(indent=entries[-1] if entries else "  ")
    _write(config, text + ("" if text.endswith("\n") else "\n") + block, config.stat().st_mode & 0o777)
    return Installed("pre-commit", config.name, new=True)


def _in_script(path: Path) -> bool:
    """False: it was there."""
    text = path.read_text("utf-8") if path.exists() else ""
    if MARK in text:
        return False
    first = text.split("\n", 1)[0]
    if text.strip() and first.startswith("#!") and not _SHELLS.match(first):
        raise KiciError(f"{path} is no shell script: make it run `{MARK}` by hand")
    before = (text if text.endswith("\n") or not text else text + "\n") or "#!/bin/sh\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, before + _SCRIPT, 0o755)
    return True


def _write(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.chmod(mode)
    temporary.replace(path)


def _git_hooks(root: Path) -> Path:
    """Also where `core.hooksPath` moves it."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--git-path", "hooks"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except FileNotFoundError:
        raise KiciError("git is not installed") from None
    if done.returncode:
        raise KiciError(f"{root} is no git repository: `git init` makes it one")
    return root / done.stdout.strip()
