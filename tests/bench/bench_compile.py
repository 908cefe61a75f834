"""`kici compile` of many workflows, beside one Python that only imports the same modules."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.harness import Result, against_floor, process_ms

COUNTS = (50, 200)
NAMES = tuple(f"compile_{count}_ms" for count in COUNTS)
SOURCE = """
from kici import Ctx, job, push, step, workflow

@step
async def test(ctx: Ctx) -> int:
    await ctx.sh("true")
    return 1

build = job("build", runs_on="linux", matrix={{"python": ["3.11", "3.13"]}}, steps=["make", test])
lint = job("lint", runs_on="linux", needs=[build], steps=["make lint"])
ci_{number} = workflow("ci-{number}", on=push(branches="main"), jobs=[build, lint])
"""
IMPORT_ALL = """
import sys, runpy, glob
from kici import Ctx, job, push, step, workflow
sys.path.insert(0, ".kici/workflows")
for path in sorted(glob.glob(".kici/workflows/*.py")):
    __import__(path.split("/")[-1][:-3])
"""


def run() -> list[Result]:
    return [_measured(count) for count in COUNTS]


def _measured(count: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="kici-bench-") as directory:
        root = Path(directory)
        workflows = root / ".kici" / "workflows"
        workflows.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", directory], check=True)
        for number in range(count):
            (workflows / f"ci_{number:03}.py").write_text(SOURCE.format(number=number))
        return against_floor(
            f"compile_{count}_ms",
            lambda: process_ms([sys.executable, "-m", "kici.cli.main", "compile"], cwd=root),
            "python that imports the modules",
            lambda: process_ms([sys.executable, "-c", IMPORT_ALL], cwd=root),
            limit=2.5,
        )
