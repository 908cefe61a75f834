"""The same suite as a user without privileges, where the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kici.agent.sandbox.bubblewrap import find_bwrap
from kici.agent.sandbox.launch import SOURCE, interpreter_paths

UID = 61_100
TESTS = Path(__file__).parent


def as_user(command: list[str]) -> list[str]:
    """Run a command as another user, who may enter the directories of the interpreter and of this repository."""
    assert shutil.which("setpriv")
    repository = TESTS.parents[2]
    argv = [find_bwrap(), "--die-with-parent", "--dev-bind", "/", "/"]
    argv += ["--perms", "0755", "--tmpfs", str(Path.home())]
    argv += list(_bound([*interpreter_paths(), repository]))
    return [*argv, "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *command]


def _bound(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if path.is_relative_to(Path.home()):
            for parent in reversed(path.parents):
                if parent.is_relative_to(Path.home()) and parent != Path.home():
                    yield from ("--perms", "0755", "--dir", str(parent))
            yield from ("--ro-bind", str(path), str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as a user already")
def test_the_suite_passes_for_an_agent_that_is_not_root() -> None:
    suites = [str(TESTS / f"test_{name}.py") for name in ("contract", "isolation", "choose")]
    pytest_ = [sys.executable, "-m", "pytest", "-n0", "-q", "--rootdir", str(TESTS.parents[2]), *suites]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(SOURCE), "LANG": "C.UTF-8"}
    ran = subprocess.run(
        as_user(pytest_), env=environment, capture_output=True, text=True, timeout=110, cwd=TESTS.parents[2]
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(".") > 30
