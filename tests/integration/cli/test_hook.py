"""`kici hook install` on real repositories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.program import run
from tests.support.git import git

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    monkeypatch.chdir(root)
    assert run(program, "kici", ["init"]) == 0
    return root


def test_where_kici_does_not_dare_it_says_what_to_write(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".pre-commit-config.yaml").write_text("repos: []\nci:\n  skip: []\n")
    assert run(program, "kici", ["hook", "install"]) == 1
    assert "id: kici-compile" in capsys.readouterr().err
    assert (root / ".pre-commit-config.yaml").read_text() == "repos: []\nci:\n  skip: []\n"
    (root / ".pre-commit-config.yaml").unlink()
    (root / ".git/hooks").mkdir(exist_ok=True)
    (root / ".git/hooks/pre-commit").write_text("#!/usr/bin/env python3\nprint()\n")
    assert run(program, "kici", ["hook", "install"]) == 1
    assert "no shell script" in capsys.readouterr().err
    (root / "lefthook.yml").write_text("pre-commit:\n")
    assert run(program, "kici", ["hook", "install"]) == 1
    assert "lefthook.yml" in capsys.readouterr().err


def test_outside_git_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".kici").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(program, "kici", ["hook", "install"]) == 1


def test_a_commit_brings_its_lock_file_and_one_that_does_not_compile_is_stopped(root: Path, tmp_path: Path) -> None:
    """With the real git: the hook runs `kici` from the PATH."""
    assert run(program, "kici", ["hook", "install"]) == 0
    hook = root / ".git/hooks/pre-commit"
    assert os.access(hook, os.X_OK)
    before = hook.read_text()
    assert run(program, "kici", ["hook", "install"]) == 0
    assert hook.read_text() == before
    command = tmp_path / "bin" / "kici"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kici.cli.main "$@"\n')
    command.chmod(0o755)
    env = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)}
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "-m", "one", cwd=root, env=env)
    assert ".kici/kici.lock.json" in git("ls-files", cwd=root).splitlines()
    (root / ".kici/workflows/ci.py").write_text("1 / 0\n")
    git("add", "--all", cwd=root)
    assert "division by zero" in git("commit", "-m", "two", cwd=root, env=env, check=False)
    assert git("rev-list", "--count", "HEAD", cwd=root) == "1"


@pytest.mark.parametrize("existing", ["", "#!/bin/bash\nmake check\n"])
def test_what_a_shell_hook_does_already_it_does_still(root: Path, existing: str) -> None:
    (root / ".husky").mkdir()
    if existing:
        (root / ".husky/pre-commit").write_text(existing)
    assert run(program, "kici", ["hook", "install"]) == 0
    text = (root / ".husky/pre-commit").read_text()
    assert text.startswith(existing or "#!/bin/sh\n")
    assert text.count("kici compile") == 1
    subprocess.run(["sh", "-n", root / ".husky/pre-commit"], check=True)


@pytest.mark.parametrize(
    "text",
    ["repos:\n- repo: local\n  hooks: []\n", "default_stages: [pre-commit]\nrepos:\n    - repo: x\n", "repos:\n"],
)
def test_pre_commit_gets_an_entry_of_the_same_indent(root: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = root / ".pre-commit-config.yaml"
    config.write_text(text)
    assert run(program, "kici", ["hook", "install"]) == 0
    added = config.read_text().removeprefix(text)
    indent = text.split("- repo")[0].split("\n")[-1] if "- repo" in text else "  "
    assert added.startswith(f"{indent}- repo: local\n{indent}  hooks:\n{indent}    - id: kici-compile\n")
    capsys.readouterr()
    assert run(program, "kici", ["hook", "install", "--json"]) == 0
    assert '"installed": false' in capsys.readouterr().out
