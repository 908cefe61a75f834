"""`kici init`, `compile` and `preview`, as a developer types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

SOURCES = Path(__file__).parents[3] / "src"
Type: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


@pytest.fixture
def kici(repository: Path) -> Type:
    def call(*arguments: str, cwd: str = ".") -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kici.cli.main", *arguments],
            cwd=repository / cwd,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return call


def test_the_first_workflow_compiles_at_once_and_the_check_agrees(repository: Path, kici: Type) -> None:
    code, out, _ = kici("init")
    assert code == 0
    assert "kici compile" in out
    assert ".kici/.secrets" in (repository / ".gitignore").read_text().splitlines()
    assert kici("compile", "--strict") == (0, "wrote .kici/kici.lock.json: 1 workflow, 2 jobs\n", "")
    assert kici("compile", "--check", cwd=".kici/workflows") == (
        0,
        ".kici/kici.lock.json is up to date: 1 workflow, 2 jobs\n",
        "",
    )


def test_a_first_workflow_is_not_overwritten(repository: Path, kici: Type) -> None:
    kici("init")
    (repository / ".kici/workflows/ci.py").write_text("mine")
    code, _, err = kici("init")
    assert (code, err.splitlines()[0][:7]) == (1, "error: ")
    assert (repository / ".kici/workflows/ci.py").read_text() == "mine"
    (repository / ".kici/workflows/ci.py").unlink()
    assert kici("init")[0] == 0
    assert (repository / ".gitignore").read_text().count(".kici/.secrets") == 1


def test_the_check_says_what_differs_and_writes_nothing(repository: Path, kici: Type) -> None:
    kici("init")
    kici("compile")
    before = (repository / ".kici/kici.lock.json").read_bytes()
    source = repository / ".kici/workflows/ci.py"
    source.write_text(source.read_text().replace("echo replace me", "make test"))
    code, out, err = kici("compile", "--check")
    assert (code, out) == (1, "")
    assert 'error: ~ files › workflows/ci.py: "' in err
    assert "error: + workflows › ci › jobs › test › steps › make test: " in err
    assert "error: - workflows › ci › jobs › test › steps › echo replace me: " in err
    assert (repository / ".kici/kici.lock.json").read_bytes() == before


def test_errors_come_with_their_lines_and_the_lock_file_stays(repository: Path, kici: Type) -> None:
    kici("init")
    kici("compile")
    before = (repository / ".kici/kici.lock.json").read_bytes()
    (repository / ".kici/workflows/bad.py").write_text("print('hello')\n1 / 0\n")
    code, out, err = kici("compile")
    assert (code, out) == (1, "")
    assert "error: .kici/workflows/bad.py:2: import: ZeroDivisionError: division by zero" in err
    assert (repository / ".kici/kici.lock.json").read_bytes() == before
    code, out, _ = kici("compile", "--json")
    assert (code, json.loads(out)["problems"][0]["line"]) == (1, 2)


def test_a_preview_says_what_would_run_and_why_not(repository: Path, kici: Type) -> None:
    (repository / ".kici/workflows").mkdir(parents=True)
    (repository / ".kici/workflows/ci.py").write_text(
        "from kici import job, manual, push, workflow\n"
        'lint = job("lint", runs_on="linux", steps=["true"])\n'
        'test = job("test", runs_on="linux", needs=[lint], matrix={"n": [1, 2]}, steps=["true"])\n'
        'ci = workflow("ci", on=push(branches="main", paths="src/**"), jobs=[lint, test])\n'
        'hand = workflow("hand", on=manual(), jobs=[lint])\n'
    )
    code, out, _ = kici("preview", "--event", "push", "--ref", "main", "--changed", "src/a.py", "--json")
    assert code == 0
    ci, hand = json.loads(out)
    assert [job["name"] for job in ci["jobs"]] == ["lint", "test (1)", "test (2)"]
    assert ci["jobs"][1]["needs"] == ["lint"]
    assert (hand["decision"]["matched"], hand["jobs"]) == (False, [])
    code, out, _ = kici("preview", "--ref", "main", "--changed", "README.md")
    assert code == 0
    assert "✗ ci: No triggers matched" in out
    assert "paths: README.md is not src/**" in out
    assert kici("preview", "--workflow", "cii")[0] == 1


def test_mistakes_at_the_command_line(kici: Type) -> None:
    code, _, err = kici("copmile")
    assert (code, "Did you mean 'compile'?" in err) == (2, True)
    code, _, err = kici("compile")
    assert (code, err[:7], "kici init" in err) == (1, "error: ", True)
    assert "Traceback" not in err
    assert "Traceback" in kici("--debug", "compile")[2]
