"""The examples of the documentation compile, and type checkers accept them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kici.compiler.compile import compile_directory

PROJECT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A repository with every example that names its file."""
    page = (PROJECT / "docs/user/writing-workflows.md").read_text()
    found = list(EXAMPLE.finditer(page))
    assert len(found) == page.count("```python")
    for example in found:
        path = tmp_path / example["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example["text"])
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def test_the_examples_compile_without_warnings(examples: Path) -> None:
    compiled = compile_directory(examples, strict=True)
    assert [str(problem) for problem in compiled.problems] == []


@pytest.mark.timeout(300)
def test_the_examples_are_typed(examples: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--explicit-package-bases"),
            *("--cache-dir", str(examples / "cache"), "workflows"),
        ],
        cwd=examples / ".kici",
        env={**os.environ, "MYPYPATH": f"{PROJECT / 'src'}:{examples / '.kici'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
