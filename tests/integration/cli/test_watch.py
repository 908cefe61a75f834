"""`kici compile --watch` as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kici.cli import watching
from kici.cli.main import program
from kici.program import run
from tests.support.git import git

SOURCE = Path(__file__).parents[3] / "src"


def test_it_waits_until_all_is_quiet_and_ignores_what_compiling_writes(tmp_path: Path) -> None:
    ignored = frozenset({"kici.lock.json"})
    known = watching.state(tmp_path, ignored)
    (tmp_path / "kici.lock.json").write_text("x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("x")
    assert watching.state(tmp_path, ignored) == known
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (2, 3, 4):  # an editor that writes three times
            (tmp_path / "ci.py").write_text("x" * len(pauses))

    now = watching.changed(tmp_path, ignored, known, pause)
    assert now == watching.state(tmp_path, ignored)
    assert len(pauses) == 5


@pytest.mark.timeout(60)
def test_it_compiles_again_after_each_change_also_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("init", "--quiet", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(program, "kici", ["init"]) == 0
    lock, source = tmp_path / ".kici/kici.lock.json", tmp_path / ".kici/workflows/ci.py"
    good = source.read_text()
    source.write_text("1 / 0")
    watched = subprocess.Popen(
        [sys.executable, "-m", "kici.cli.main", "compile", "--watch"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watched.stderr
        for line in watched.stderr:
            if "watching" in line:
                break
        assert not lock.exists()
        source.write_text(good)
        for line in watched.stderr:
            if "watching" in line:
                break
        assert lock.exists()
    finally:
        watched.send_signal(signal.SIGINT)
        out, _ = watched.communicate(timeout=20)
    assert "wrote .kici/kici.lock.json" in out
    assert watched.returncode == 0
