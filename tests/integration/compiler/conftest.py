"""A repository whose workflows a test writes, and what its compile says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from kici.compiler.compile import Compiled, compile_directory

HEAD = "from kici import *\nfrom kici import Ctx, job, labels, manual, pr, push, step, workflow\n"
"""Two lines, so that the first line of a test's text is line 3."""


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "init", "--quiet", root], check=True)

    def write(self, path: str, text: str | bytes) -> None:
        """Below `.kici/`."""
        file = self.root / ".kici" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())

    def module(self, path: str, text: str) -> None:
        """A module below `.kici/workflows/`, with the imports that nearly every test wants."""
        self.write(f"workflows/{path}", HEAD + dedent(text).lstrip("\n"))

    def file(self, path: str, text: str) -> None:
        """Anywhere in the repository."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def compile(self, *, strict: bool = False, limit_s: float = 20) -> Compiled:
        return compile_directory(self.root, strict=strict, limit_s=limit_s)

    def problems(self, *, limit_s: float = 20) -> list[str]:
        """With the paths below `.kici/workflows/`, for short lines in tests."""
        compiled = self.compile(limit_s=limit_s)
        assert (compiled.lock is None) == bool(compiled.problems)
        return [str(problem).removeprefix(".kici/workflows/") for problem in compiled.problems]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def process_with() -> Callable[[str], bool]:
    """Tells whether a process with this word among its arguments is alive."""

    def alive(word: str) -> bool:
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if word.encode() in (directory / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
        return False

    return alive
