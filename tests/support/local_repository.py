"""Fixtures: a bare repository with the hook, and a working tree that pushes to it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import kici
from kici.forges.local.hook_files import HookConfig, install_hook

Git: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"

SECRET = "a secret of the hook"


@pytest.fixture(scope="session")
def isolated_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that finds this kici although `-I` makes it ignore PYTHONPATH."""
    home = tmp_path_factory.mktemp("python")
    venv.create(home, with_pip=False, symlinks=True)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    source = Path(next(iter(kici.__path__))).parent
    (packages / "kici.pth").write_text(f"{source}\n")
    return str(home / "bin" / "python")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    repository = tmp_path / "demo.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(repository)], check=True)
    return repository


@pytest.fixture
def hooked(bare: Path, isolated_python: str) -> Callable[[str], Path]:
    def hook(url: str) -> Path:
        install_hook(bare, HookConfig(url, SECRET, "local/demo"), python=isolated_python)
        return bare

    return hook


@pytest.fixture
def git(tmp_path: Path, bare: Path) -> Git:
    """Runs git in a working tree whose `origin` is the bare repository."""
    tree = tmp_path / "tree"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "USER": "ada",
        "LOGNAME": "ada",
        "http_proxy": "http://127.0.0.1:9",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=tree, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    tree.mkdir()
    run("init", "--quiet", "-b", "main")
    run("remote", "add", "origin", str(bare))
    return run


@pytest.fixture
def commit(git: Git, tmp_path: Path) -> Callable[..., str]:
    def make(message: str, *files: str) -> str:
        for name in files:
            file = tmp_path / "tree" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{message} {name}\n")
        git("add", "-A")
        git("commit", "--quiet", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD").stdout.strip()

    return make
