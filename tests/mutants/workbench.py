"""A copy of the tree in which mutations are applied one after the other, and a database for their tests."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Literal

from msgspec import Struct

from tests.mutants.mutation import Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml")
TEST_S = 20
"""A test that hangs is one that fails."""
RUN_S = 120
_HUNG = re.compile(r"Timeout \(>[0-9.]+s\)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(Struct, frozen=True):
    kind: Literal["passed", "failed", "broken"]
    """`broken`: no test could say anything, because the code or the command makes no sense."""
    test: str = ""
    """The one that failed."""
    output: str = ""


class Workbench:
    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "KICI_TEST_DATABASE_URL": database_url,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
        }
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)
        # Compiled files that are checked by the hash of their source: two edits within a second are told apart.
        compileall.compile_dir(folder, quiet=2, workers=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def run(self, mutation: Mutation) -> Outcome:
        """Raises `Stale` if the mutation does not fit."""
        path = self._folder / mutation.file
        before = path.read_bytes() if path.is_file() else b""
        mutation.apply(self._folder)
        try:
            return self.test(mutation.tests)
        finally:
            path.write_bytes(before)

    def test(self, tests: Sequence[str]) -> Outcome:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "-rfE",
            f"--timeout={TEST_S}",
            "-p",
            "no:randomly",
        ]
        command += [f"tests/{test}" for test in tests]
        try:
            done = subprocess.run(
                command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome("failed", f"all of it, after {RUN_S} s")
        failed = _FAILED.search(done.stdout)
        if done.returncode == 0:
            return Outcome("passed")
        if hung := _HUNG.search(done.stdout):
            return Outcome(
                "failed", f"{failed.group(1).removeprefix('tests/') if failed else tests[0]}: {hung.group()}"
            )
        if done.returncode == 1 and failed:
            return Outcome("failed", failed.group(1).removeprefix("tests/"))
        return Outcome("broken", output=f"{done.stdout[-3000:]}\n{done.stderr[-1000:]}")
