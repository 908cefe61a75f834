"""The workflows of the examples pass mypy --strict, as their authors would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_workflows_of_the_examples_are_typed(tmp_path: Path) -> None:
    """In one call: `workflows` and `lib` are packages without a place of their own, so their modules differ in name."""
    roots = sorted((PROJECT / "examples").glob("*/.kici"))
    modules = [path for root in roots for path in sorted(root.rglob("*.py"))]
    names = [str(path.relative_to(root)) for root in roots for path in root.rglob("*.py")]
    assert len(names) == len(set(names)) >= len(roots) > 0, sorted(names)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--explicit-package-bases"),
            *("--cache-dir", str(tmp_path), *map(str, modules)),
        ],
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, (PROJECT / "src", *roots)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
