"""`kici run local` of a trivial workflow, beside an interpreter, a sandbox and a shell."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from kici.agent.sandbox.bubblewrap import find_bwrap
from tests.bench.harness import Result, against_floor, process_ms

NAMES = ("run_local_ms",)
SOURCE = """
from kici import Ctx, job, push, workflow

@job(runs_on="linux")
async def hello(ctx: Ctx) -> None:
    await ctx.sh("true")

ci = workflow("ci", on=push(), jobs=[hello])
"""


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="kici-bench-") as directory:
        root = Path(directory)
        (root / ".kici" / "workflows").mkdir(parents=True)
        (root / ".kici" / "workflows" / "ci.py").write_text(SOURCE)
        for arguments in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qmx"]):
            subprocess.run(["git", *arguments], cwd=root, check=True)
        return [
            against_floor(
                "run_local_ms",
                lambda: process_ms([sys.executable, "-m", "kici.cli.main", "run", "local", "ci"], cwd=root),
                "python importing asyncio and msgspec + sandbox + bash",
                _floor,
                limit=4,
            )
        ]


def _floor() -> float:
    box = [find_bwrap(), "--dev-bind", "/", "/", "--unshare-pid", "--unshare-user", "--", "bash", "-c", "true"]
    return process_ms([sys.executable, "-c", "import asyncio, msgspec"]) + process_ms(box)
