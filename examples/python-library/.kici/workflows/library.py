"""Lint, test with every Python that the agent has, build the wheel once and try it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kici import Ctx, Retry, job, manual, pr, push, rule, step, uv_sync, workflow

PYTHONS = ["3.11", "3.12", "3.13"]
UV = {"UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never"}
"""Nothing is fetched: the library needs nothing. Drop it when yours does."""


@job(runs_on="linux", timeout="5m")
async def lint(ctx: Ctx) -> None:
    await ctx.sh("ruff check --no-cache .")
    await ctx.sh("ruff format --no-cache --check .")


@rule("the agent has this Python")
async def has_python(ctx: Ctx) -> bool:
    return await ctx.sh("python{version} --version", version=ctx.matrix.python).ok()


@step(timeout="10m", retry=Retry(2, delay="1s"))
async def tests(ctx: Ctx) -> str:
    await ctx.sh("python -m unittest discover tests")
    return await ctx.sh("python --version").text()


test = job(
    "test",
    runs_on="linux",
    needs=[lint],
    matrix={"python": PYTHONS},
    rules=[has_python],
    env={"UV_PYTHON": "{matrix.python}", **UV},
    init=uv_sync(),
    steps=[tests],
)


@dataclass
class Wheel:
    version: str
    path: str
    sha256: str


@step
async def build_wheel(ctx: Ctx) -> Wheel:
    tested = [one.matrix.python for one in ctx.outputs_all(tests) if one.status == "success"]
    if not tested:
        raise RuntimeError(f"the agent has none of Python {', '.join(PYTHONS)}")
    version = await ctx.sh("uv version --short").text()
    await ctx.sh("uv build --wheel --out-dir dist")
    path = f"dist/slugs-{version}-py3-none-any.whl"
    ctx.summary(f"slugs {version}, tested with Python {', '.join(tested)}")
    return Wheel(version, path, hashlib.sha256(Path(path).read_bytes()).hexdigest())


@step
async def try_wheel(ctx: Ctx) -> str:
    """What is published is what was tried: the wheel itself, without the source beside it."""
    wheel = ctx.outputs(build_wheel)
    code = "from slugs import slug; print(slug('It works'))"
    return await ctx.sh(
        "uv run --isolated --no-project --with {path} python -c {code}", path=wheel.path, code=code
    ).text()


@step
async def upload(ctx: Ctx) -> None:
    await ctx.artifacts.upload("wheel", [ctx.outputs(build_wheel).path])


# A Python that the agent lacks skips its test: that is no reason not to build.
build = job("build", runs_on="linux", needs=[test.when("on_skip")], env=UV, steps=[build_wheel, try_wheel, upload])

library = workflow("library", on=[push(branches="main"), pr(), manual()], jobs=[lint, test, build], timeout="30m")
