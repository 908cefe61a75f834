"""A real git repository with a workflow and its lock file, made without the compiler."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kici.engine import kici_files, lockfile

_ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
}


class KiciRepository:
    """Below `root`; each job of workflow `ci` is a list of shell commands."""

    def __init__(
        self,
        root: Path,
        jobs: Mapping[str, Sequence[str]],
        *,
        grace_period_ms: int = 500,
        checkout: bool = True,
        options: Mapping[str, Any] | None = None,
        registries: tuple[lockfile.LockRegistry, ...] = (),
    ) -> None:
        """`options`: of every job in the lock file."""
        self.root = root
        self._grace_period_ms = grace_period_ms
        self._checkout = checkout
        self._options = options or {}
        self.registries = registries
        root.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.write({"README.md": "hello\n", ".kici/workflows/ci.py": self._module(jobs)})
        self.lock(jobs)
        self.commit()

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.root, env=_ENV, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.sha

    @property
    def sha(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def lock_sha256(self) -> str:
        return hashlib.sha256((self.root / lockfile.PATH).read_bytes()).hexdigest()

    def lock(self, jobs: Mapping[str, Sequence[str]]) -> None:
        """Write the lock file for what stands under `.kici/` now."""
        kici = self.root / ".kici"
        files = {
            str(path.relative_to(kici)): kici_files.digest(path.read_bytes())
            for path in sorted(kici.rglob("*"))
            if path.is_file() and path != self.root / lockfile.PATH
        }
        locked = tuple(
            lockfile.LockJob(
                name,
                steps=tuple(lockfile.LockStep(f"step {n}", command=command) for n, command in enumerate(commands)),
                runs_on=("linux",),
                grace_period_ms=self._grace_period_ms,
                checkout=self._checkout,
                **self._options,
            )
            for name, commands in jobs.items()
        )
        place = lockfile.SourceLocation(".kici/workflows/ci.py")
        workflow = lockfile.LockWorkflow(
            "ci", place, "ci", "0" * 64, triggers=(), jobs=locked, registries=self.registries
        )
        self.write({lockfile.PATH: lockfile.encode(lockfile.LockFile(1, "0" * 64, files, (workflow,))).decode()})

    def _module(self, jobs: Mapping[str, Sequence[str]]) -> str:
        lines = ["from kici import job, push, step, workflow", ""]
        for name, commands in jobs.items():
            steps = ", ".join(f"step({f'step {n}'!r}, {command!r})" for n, command in enumerate(commands))
            lines.append(f"{name} = job({name!r}, runs_on='linux', steps=[{steps}])")
        lines.append(f"ci = workflow('ci', on=push(), jobs=[{', '.join(jobs)}])")
        return "\n".join(lines) + "\n"
