"""Real repositories for tests, made with the real git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_COMMITTER_NAME": "A U Thor",
    "GIT_COMMITTER_EMAIL": "author@example.com",
}


def git(*args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Output of a git command, without the last newline. With `check=False` also what it said on stderr."""
    done = subprocess.run(
        ["git", *args], cwd=cwd, env=_ENV | dict(env or {}), capture_output=True, text=True, timeout=30, check=False
    )
    if check and done.returncode:
        raise AssertionError(f"git {' '.join(args)}: {done.stderr}")
    return (done.stdout if check else done.stdout + done.stderr).removesuffix("\n")


def bare(path: Path) -> Path:
    """A bare repository that a forge could serve: any commit may be fetched, partial clones are allowed."""
    git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
    for key in ("uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter"):
        git("config", key, "true", cwd=path)
    return path


class WorkTree:
    """Somebody's checkout, who commits and pushes to `remote`."""

    def __init__(self, path: Path, remote: Path | None = None) -> None:
        """A new one that pushes to `remote`, or without it a clone that is there."""
        self.path = path
        if remote is not None:
            git("init", "--quiet", "--initial-branch=main", str(path))
            git("remote", "add", "origin", str(remote), cwd=path)

    def git(self, *args: str) -> str:
        return git(*args, cwd=self.path)

    def commit(self, files: Mapping[str, str | bytes | None], message: str = "change") -> str:
        """Write the files (None removes), commit, and return the commit's id."""
        for name, content in files.items():
            file = self.path / name
            if content is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def push(self, *refs: str) -> None:
        self.git("push", "--quiet", "--force", "origin", *(refs or ("HEAD",)))
