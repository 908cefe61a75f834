"""The examples of the page on triggers compile, and its commands print what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.compiler.compile import compile_directory
from kici.program import run
from kici.sdk.triggers import NAMES

PAGE = (Path(__file__).parents[3] / "docs/user/triggers.md").read_text()
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^```console\n\$ kici (?P<call>.*?)\n(?P<says>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for example in EXAMPLE.finditer(PAGE):
        path = tmp_path / example["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example["text"])
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_compile_without_warnings(examples: Path) -> None:
    assert [str(problem) for problem in compile_directory(examples, strict=True).problems] == []


def test_the_commands_print_what_the_page_says(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = list(COMMAND.finditer(PAGE))
    assert len(commands) == 4
    for command in commands:
        assert run(program, "kici", shlex.split(command["call"])) == 0
        assert command["says"] == capsys.readouterr().out


def test_the_page_knows_every_trigger() -> None:
    assert [name for name in NAMES if f"`{name}(" not in PAGE] == []


def test_the_example_runs(examples: Path) -> None:
    assert run(program, "kici", ["run", "local", "deploy", "--input", "replicas=3", "--in-place"]) == 0
    assert run(program, "kici", ["run", "local", "chat", "--in-place"]) == 0
