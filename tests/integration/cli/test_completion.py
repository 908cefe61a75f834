"""`kici completion`: the scripts work in the shells that are here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.program import run
from tests.support.locks import job, lock, workflow


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_kici(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shell == "bash":
        version = subprocess.run(["bash", "-c", "echo ${BASH_VERSION}"], capture_output=True, text=True, check=True)
        assert version.stdout.strip()  # click asks bash for its version
    assert run(program, "kici", ["completion", shell]) == 0
    assert f"_KICI_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_an_unknown_shell_is_a_usage_error_that_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, "kici", ["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("kici co", {"compile", "completion"}), ("kici compile --s", {"--strict"}), ("kici run lo", {"local"})],
)
def test_bash_completes_commands_and_options(typed: str, offered: set[str], tmp_path: Path) -> None:
    """The real script in a real bash: what it puts into COMPREPLY."""
    command = tmp_path / "kici"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kici.cli.main "$@"\n')
    command.chmod(0o755)
    sources = Path(__file__).parents[3] / "src"
    words = typed.split()
    script = (
        'complete() { :; }; eval "$(kici completion bash)"; '
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _kici_completion kici; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHONPATH": str(sources), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert set(done.stdout.split()) == offered, done.stderr


def completed(program_name: str, arguments: list[str], incomplete: str) -> list[str]:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(program, {}, program_name, "_KICI_COMPLETE")
    return [item.value for item in complete.get_completions(arguments, incomplete)]


def test_names_of_workflows_and_jobs_come_from_the_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed("kici", ["run", "local"], "") == []
    (tmp_path / ".kici").mkdir()
    (tmp_path / ".kici/kici.lock.json").write_text("{")
    assert completed("kici", ["run", "local"], "") == []
    locked = lock(workflow("ci", jobs=[job("lint"), job("late")]), workflow("deploy", jobs=[job("ship")]))
    (tmp_path / ".kici/kici.lock.json").write_bytes(locked)
    assert completed("kici", ["run", "local"], "") == ["ci", "deploy"]
    assert completed("kici", ["run", "local", "ci", "--job"], "l") == ["late", "lint"]
    assert completed("kici", ["preview", "--workflow"], "d") == ["deploy"]
    assert completed("kici", ["runs", "start"], "") == ["ci", "deploy"]


def test_completing_a_run_does_not_fail_without_an_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KICI_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("KICI_TOKEN", "x")
    assert completed("kici", ["runs", "show"], "") == []
