"""As many jobs as the tests want, known only when the checkout is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from kici import Ctx, Job, job, jobs, manual, pr, push, step, workflow

from lib.balance import balanced

SHARDS = 2


@step(timeout="10m")
async def run_tests(ctx: Ctx) -> int:
    """The number of tests that ran."""
    files = ctx.env["FILES"].split()
    said = await ctx.sh("python3 -m unittest {files} 2>&1", files=[f"tests/{name}" for name in files]).text()
    ran = re.search(r"^Ran (\d+) test", said, re.MULTILINE)
    return int(ran[1]) if ran else 0


@jobs("shards")
def shards(ctx: Ctx) -> Iterator[Job[None]]:
    """Runs on an agent, in a job of its own; and once more where a shard runs, so it asks nothing but the checkout."""
    files = sorted(path.name for path in Path("tests").glob("test_*.py"))
    seconds = json.loads(Path("tests/seconds.json").read_text())
    for number, names in enumerate(balanced(files, seconds, SHARDS), 1):
        yield job(f"shard-{number}", runs_on="linux", env={"FILES": " ".join(names)}, steps=[run_tests])


def modules(ctx: Ctx) -> dict[str, list[str]]:
    return {"module": sorted(path.stem for path in Path().glob("*.py"))}


@job(runs_on="linux", matrix=modules)
async def document(ctx: Ctx) -> list[str]:
    """The functions of one module. Which modules there are, the checkout knows."""
    return re.findall(r"^def (\w+)", Path(f"{ctx.matrix.module}.py").read_text(), re.MULTILINE)


@job(runs_on="linux", needs=[shards, document])
async def report(ctx: Ctx) -> dict[str, int]:
    """One output for each job that the generator has made, one for each combination of the matrix."""
    ran = {one.name: one.value for one in ctx.outputs_all(run_tests, job=shards)}
    functions = sum(len(one.value) for one in ctx.outputs_all(document))
    ctx.summary(f"{sum(ran.values())} tests in {len(ran)} shards, {functions} functions")
    return {**ran, "functions": functions}


flow = workflow("shards", on=[push(branches="main"), pr(), manual()], jobs=[shards, document, report])
