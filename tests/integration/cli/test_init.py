"""`kici init`: what it makes compiles, its test passes, and nothing that is there is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.cli.templates import TEMPLATES
from kici.compiler.compile import compile_directory
from kici.program import run
from tests.support.git import git

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_never_overwrites(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    (root / ".kici/workflows").mkdir(parents=True)
    (root / ".kici/workflows/ci.py").write_text("mine")
    assert run(program, "kici", ["init"]) == 1
    assert (root / ".kici/workflows/ci.py").read_text() == "mine"
    assert sorted(path.name for path in (root / ".kici").iterdir()) == ["workflows"]
    (root / ".kici/workflows/ci.py").unlink()
    (root / ".kici/conftest.py").write_text("mine too")
    capsys.readouterr()
    assert run(program, "kici", ["init", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made"] == [".kici/workflows/ci.py", ".kici/tests/test_ci.py"]
    assert (root / ".kici/conftest.py").read_text() == "mine too"


def test_an_unknown_template_names_the_known_ones(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, "kici", ["init", "--template", "rust"]) == 2
    assert "'hello', 'python', 'monorepo'" in capsys.readouterr().err


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_what_it_makes_compiles_and_its_test_passes(root: Path, template: str) -> None:
    git("init", "--quiet", "--initial-branch=trunk", cwd=root)
    git("commit", "--quiet", "--allow-empty", "-m", "one", cwd=root)
    assert run(program, "kici", ["init", "--template", template]) == 0
    compiled = compile_directory(root, strict=True)
    assert [str(problem) for problem in compiled.problems] == []
    assert compiled.lock
    assert "trunk" in str(compiled.lock.workflows[0].triggers)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".kici"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_generated_files_are_typed(root: Path) -> None:
    git("init", "--quiet", cwd=root)
    assert run(program, "kici", ["init", "--template", "python"]) == 0
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--config-file=",
                "--explicit-package-bases",
                "--follow-imports=silent",
            ),
            *("--cache-dir", str(root / "cache"), "workflows", "tests"),
        ],
        cwd=root / ".kici",
        env={**os.environ, "MYPYPATH": f"{SOURCE}:{root / '.kici'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_holds_secrets_cannot_be_committed(root: Path) -> None:
    git("init", "--quiet", cwd=root)
    (root / ".gitignore").write_text("dist")
    assert run(program, "kici", ["init"]) == 0
    for name in (".secrets", ".env.local", "secrets.yaml"):
        (root / ".kici" / name).write_text("TOKEN=x")
    git("add", "--all", cwd=root)
    staged = git("ls-files", cwd=root).splitlines()
    assert staged == [".gitignore", ".kici/conftest.py", ".kici/tests/test_ci.py", ".kici/workflows/ci.py"]
    assert (root / ".gitignore").read_text().splitlines()[0] == "dist"


@pytest.mark.parametrize(
    ("remote_head", "branch"), [("develop", "develop"), ("", "main")], ids=["of-the-remote", "usual-name"]
)
def test_the_default_branch_is_filled_in_also_on_another_one(root: Path, remote_head: str, branch: str) -> None:
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    git("commit", "--quiet", "--allow-empty", "-m", "one", cwd=root)
    git("checkout", "--quiet", "-b", "topic", cwd=root)
    if remote_head:
        git("update-ref", f"refs/remotes/origin/{remote_head}", "HEAD", cwd=root)
        git("symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{remote_head}", cwd=root)
    assert run(program, "kici", ["init"]) == 0
    assert f'push(branches="{branch}")' in (root / ".kici/workflows/ci.py").read_text()
