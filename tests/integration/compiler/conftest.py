from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kici.compiler.compile import Compiled, compile_directory


class Repo:
    """A temporary git repository. Paths are below `.kici/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")
        (root / ".kici" / "workflows").mkdir(parents=True)

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, timeout=20)

    def write(self, path: str, content: str | bytes) -> None:
        file = self.root / ".kici" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def compile(self, *, strict: bool = False, limit_s: float = 15.0) -> Compiled:
        return compile_directory(self.root, strict=strict, limit_s=limit_s)

    def problems(self, *, limit_s: float = 15.0) -> list[str]:
        return [str(problem) for problem in self.compile(limit_s=limit_s).problems]


@pytest.fixture
def make_repo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Repo]:
    return lambda: Repo(tmp_path_factory.mktemp("repo"))


@pytest.fixture
def repo(make_repo: Callable[[], Repo]) -> Repo:
    return make_repo()
