"""The examples of docs/user/dynamic-jobs.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kici.compiler.compile import compile_directory
from tests.integration.cli.test_run_local import Repository

PROJECT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for name in ("tmp", "home", "repo", "tools"):
        (tmp_path / name).mkdir()
    made = Repository(tmp_path / "repo", tmp_path / "tools")
    page = (PROJECT / "docs/user/dynamic-jobs.md").read_text()
    found = list(EXAMPLE.finditer(page))
    assert len(found) == page.count("```python")
    for example in found:
        made.write(example["path"], example["text"])
    for name in ("api", "web"):
        made.write(f"packages/{name}/NAME", name)
    made.commit()
    return made


def test_a_matrix_over_packages(repository: Repository) -> None:
    assert [str(one) for one in compile_directory(repository.root).problems] == []
    ran = repository.run("packages")
    assert ran.returncode == 0, ran.stdout
    assert "api apilive" in ran.stdout
    assert "web weblive" in ran.stdout


def test_shards(repository: Repository) -> None:
    found = repository.document("shards")
    jobs = {job["name"]: job for one in found["workflows"] for job in one["jobs"]}
    assert {name: job["status"] for name, job in jobs.items()} == dict.fromkeys(
        ["plan", "init: shards", "fast", "slow", "total"], "success"
    )
    assert jobs["total"]["outputs"] == {"total": 30}
