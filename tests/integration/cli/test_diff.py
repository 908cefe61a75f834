"""`kici diff`: what a compile would change, value by value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from kici.cli.main import program
from kici.engine import lockfile
from kici.program import run

BEFORE = """
from kici import job, manual, workflow
lint = job("lint", runs_on="linux", timeout="5m", steps=["true"])
test = job("test", runs_on="linux", steps=["true", "false"])
ci = workflow("ci", on=manual(), jobs=[lint, test])
"""
Diff: TypeAlias = Callable[..., tuple[int, str]]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / ".kici/workflows/ci.py"
    path.parent.mkdir(parents=True)
    path.write_text(BEFORE)
    monkeypatch.chdir(tmp_path)
    assert run(program, "kici", ["compile"]) == 0
    capsys.readouterr()
    return path


@pytest.fixture
def diff(module: Path, capsys: pytest.CaptureFixture[str]) -> Diff:
    def call(*arguments: str) -> tuple[int, str]:
        code = run(program, "kici", ["diff", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_nothing_differs_after_a_compile(diff: Diff) -> None:
    assert diff() == (0, "the workflows are as .kici/kici.lock.json says\n")
    assert diff("--json") == (0, "[]\n")


def test_a_changed_value_is_shown_with_both_of_its_values_and_nothing_is_written(module: Path, diff: Diff) -> None:
    committed = (module.parents[2] / lockfile.PATH).read_bytes()
    module.write_text("# one line more moves every location\n" + BEFORE.replace("5m", "10m"))

    code, out = diff()

    assert code == 1
    changes = out.splitlines()
    assert changes[1:] == ["~ workflows › ci › jobs › lint › timeoutMs: 300000 → 600000"]
    assert re.fullmatch('~ files › workflows/ci.py: "[0-9a-f]{12}…" → "[0-9a-f]{12}…"', changes[0])
    assert (module.parents[2] / lockfile.PATH).read_bytes() == committed


def test_a_job_put_in_front_is_one_change(module: Path, diff: Diff) -> None:
    module.write_text(
        BEFORE.replace("jobs=[lint", "jobs=[first, lint").replace(
            "lint =", 'first = job("first", runs_on="linux", steps=["true"])\nlint =', 1
        )
    )

    _, out = diff("--json")

    changes = {tuple(change["path"]): change for change in json.loads(out)}
    assert set(changes) == {("files", "workflows/ci.py"), ("workflows", "ci", "jobs", "first")}
    assert "before" not in changes["workflows", "ci", "jobs", "first"]


def test_a_job_is_told_whatever_it_is_called(module: Path, diff: Diff) -> None:
    module.write_text(BEFORE.replace('"test"', '"location"'))

    _, out = diff()

    assert "+ workflows › ci › jobs › location: 2 steps" in out
    assert "- workflows › ci › jobs › test: 2 steps" in out


def test_the_order_of_jobs_and_a_step_that_is_gone_are_told(module: Path, diff: Diff) -> None:
    module.write_text(BEFORE.replace("[lint, test]", "[test, lint]").replace('["true", "false"]', '["true"]'))

    _, out = diff()

    assert '~ workflows › ci › jobs › order: ["lint","test"] → ["test","lint"]' in out
    assert "- workflows › ci › jobs › test › steps › false: " in out


def test_the_same_values_in_other_bytes_are_a_difference_as_for_the_check(module: Path, diff: Diff) -> None:
    lock = module.parents[2] / lockfile.PATH
    lock.write_text(json.dumps(json.loads(lock.read_text())))

    assert diff() == (1, ".kici/kici.lock.json is written differently\n")


def test_without_a_lock_file_every_workflow_is_new(module: Path, diff: Diff) -> None:
    (module.parents[2] / lockfile.PATH).unlink()

    code, out = diff()

    assert code == 1
    assert "+ workflows › ci: 2 jobs" in out.splitlines()


def test_a_broken_lock_file_and_broken_workflows_say_what_to_do(module: Path, diff: Diff) -> None:
    (module.parents[2] / lockfile.PATH).write_text("{")
    code, out = diff()
    assert code == 1
    assert "`kici compile` writes it anew" in out

    module.write_text(BEFORE.replace("manual()", "manuel()"))
    code, out = diff()
    assert code == 1
    assert "error: the workflows do not compile:\n" in out
    assert "manuel" in out
