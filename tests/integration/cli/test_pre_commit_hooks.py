"""The commands of `.pre-commit-hooks.yaml` do in a repository what their descriptions say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.engine import lockfile
from kici.program import run

HOOKS = Path(__file__).resolve().parents[3] / ".pre-commit-hooks.yaml"
WORKFLOW = """
from kici import job, manual, workflow
ci = workflow("ci", on=manual(), jobs=[job("lint", runs_on="linux", steps=["true"])])
"""


def entries() -> dict[str, list[str]]:
    """The command of each hook, without the program's name."""
    text = HOOKS.read_text()
    ids = re.findall(r"^- id: (\S+)$", text, re.MULTILINE)
    commands = re.findall(r"^  entry: kici (.+)$", text, re.MULTILINE)
    return dict(zip(ids, (command.split() for command in commands), strict=True))


def test_the_check_refuses_an_old_lock_file_and_the_compile_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / ".kici/workflows/ci.py"
    module.parent.mkdir(parents=True)
    module.write_text(WORKFLOW)
    monkeypatch.chdir(tmp_path)
    check, write = entries()["kici-check"], entries()["kici-compile"]

    assert run(program, "kici", check) == 1
    assert not (tmp_path / lockfile.PATH).exists()
    assert run(program, "kici", write) == 0
    assert run(program, "kici", check) == 0


def test_the_hooks_run_for_every_file_below_kici_and_for_no_other() -> None:
    patterns = re.findall(r"^  files: (.+)$", HOOKS.read_text(), re.MULTILINE)
    assert len(patterns) == len(entries())
    for pattern in patterns:
        assert re.search(pattern, ".kici/lib/deep/shared.py")
        assert not re.search(pattern, "src/.kici_notes.py")
        assert not re.search(pattern, "src/.kici/x.py")
