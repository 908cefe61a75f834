"""The examples of docs/user/testing-workflows.md are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kici.cli.templates import CONFTEST
from kici.compiler.compile import compile_directory
from tests.support.git import git

PROJECT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_compile_and_their_tests_pass(tmp_path: Path) -> None:
    page = (PROJECT / "docs/user/testing-workflows.md").read_text()
    found = list(EXAMPLE.finditer(page))
    assert len(found) == page.count("```python") == 3
    for example in found:
        path = tmp_path / example["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example["text"])
    (tmp_path / ".kici/conftest.py").write_text(CONFTEST)
    git("init", "--quiet", str(tmp_path))
    assert compile_directory(tmp_path, strict=True).problems == ()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".kici"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
