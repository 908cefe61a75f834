"""The example of the page on rules, hooks and groups compiles, is typed as the others are, and runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from kici.compiler.compile import compile_directory

PAGE = (Path(__file__).parents[3] / "docs/user/rules-hooks-and-groups.md").read_text()
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_compiles_without_warnings_and_runs(tmp_path: Path) -> None:
    (example,) = EXAMPLE.finditer(PAGE)
    path = tmp_path / example["path"]
    path.parent.mkdir(parents=True)
    path.write_text(example["text"])
    (tmp_path / "tools.txt").write_text("one\n")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    compiled = compile_directory(tmp_path, strict=True)
    assert [str(problem) for problem in compiled.problems] == []
    done = subprocess.run(
        [sys.executable, "-m", "kici.cli.main", "run", "local", "--changed", "src/a.py", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["workflows"][0]["jobs"]
    assert {step["name"]: step["status"] for step in job["steps"]} == {
        "init: mkdir -p .tools": "success",
        "init: echo installed > .tools/done": "success",
        "echo lint": "success",
        "echo types": "success",
        "unit": "success",
        "measure": "success",
        "whole": "skipped",
        "hook: on_failure": "skipped",
        "hook: cleanup": "success",
    }
