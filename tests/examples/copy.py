"""An example as an author would have it: a repository of its own, committed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.examples.compare import Foreseen, JobEnd, RunEnd
from tests.examples.expectation import Example, Preview, Run

COMMAND_S = 120
UNKNOWN_FILE = "CHANGED.txt"


class Failed(Exception):
    """A command did not do what it is there for."""


class Copy:
    def __init__(self, source: Path, root: Path) -> None:
        self.root = root
        home = root.parent / "home"
        home.mkdir()
        (root.parent / "gitconfig").write_text(
            "[user]\n name = Test\n email = test@example.com\n[init]\n defaultBranch = main\n[safe]\n directory = *\n"
        )
        self.env: Mapping[str, str] = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "GIT_CONFIG_GLOBAL": str(root.parent / "gitconfig"),
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
        }
        shutil.copytree(
            source, root, ignore=shutil.ignore_patterns("__pycache__", ".venv", "dist", "build", ".ruff_cache")
        )

    async def make(self, example: Example) -> None:
        """Commit it, and check its lock file."""
        await self.run("git", "init", "-q")
        await self.commit("The example [skip ci]")
        if example.secrets:
            shutil.copy(self.root / example.secrets, self.root / ".kici" / ".secrets")
        await self.kici("compile", "--check", "--strict")

    async def preview(self, expected: Preview) -> Foreseen:
        said = json.loads(await self.kici("preview", "--json", *expected.options))
        runs: list[str] = []
        skipped: dict[str, str] = {}
        not_started: dict[str, str] = {}
        for one in said:
            decision = one["decision"]
            if not decision["matched"]:
                checks = [f"{check['check']}: {check['value']} {check['reason']}" for check in decision["checks"]]
                not_started[decision["workflow"]] = "; ".join([decision["summary"], *checks])
            for job in one["jobs"]:
                if job.get("skip"):
                    skipped[job["name"]] = job["skip"]
                else:
                    runs.append(job["name"])
        return Foreseen(tuple(runs), skipped, not_started)

    async def run_here(self, run: Run) -> RunEnd:
        options = [
            *(f"--changed={path}" for path in run.changed),
            *(f"--input={name}={value}" for name, value in run.inputs.items()),
        ]
        if run.event == "tag":
            await self.run("git", "tag", "--force", run.ref)
        said = await self.kici(
            *("run", "local", run.workflow, "--json", "--event", run.event, "--ref", run.ref), *options, check=False
        )
        if not said.startswith("{"):
            raise Failed(f"kici run local says no JSON: {said}")
        only = json.loads(said)["workflows"][0]
        jobs = {job["name"]: _job(job) for job in only["jobs"]}
        return RunEnd(only["status"], jobs)

    async def change(self, run: Run) -> str:
        """Commit what the event is about: the commit's sha."""
        for path in run.changed or (UNKNOWN_FILE,):
            with (self.root / path).open("a") as file:
                file.write("\n")
        return await self.commit(f"Change {', '.join(run.changed) or 'nothing of importance'}")

    async def commit(self, message: str) -> str:
        await self.run("git", "add", "-A")
        await self.run("git", "commit", "-q", "-m", message)
        return (await self.run("git", "rev-parse", "HEAD")).strip()

    async def kici(self, *argv: str, check: bool = True) -> str:
        """Its standard output. Both streams, with `check=False`, if there is no standard output."""
        return await self.run(sys.executable, "-m", "kici.cli.main", *argv, check=check)

    async def run(self, *argv: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.root,
            env={**self.env, **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(COMMAND_S):
            out, err = await process.communicate()
        if check and process.returncode:
            words = " ".join(argv).removeprefix(f"{sys.executable} -m ")
            raise Failed(f"{words} ended with {process.returncode}: {out.decode()}{err.decode()}")
        return out.decode() or ("" if check else err.decode())


def _job(job: Mapping[str, Any]) -> JobEnd:
    steps = {step["name"]: step["status"] for step in job["steps"]}
    return JobEnd(job["status"], job.get("error", ""), job.get("outputs", {}), steps)
