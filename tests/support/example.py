"""A workflow with what authors use most, and stand-ins for the programs that it calls."""

from __future__ import annotations

from pathlib import Path

WORKFLOW = """
from dataclasses import dataclass
from kici import Ctx, job, pr, push, step, workflow

@job(runs_on="linux")
async def lint(ctx: Ctx) -> None:
    await ctx.sh("ruff check .")

@dataclass
class Wheel:
    version: str
    path: str

@step(timeout="5m", retry=2)
async def build_wheel(ctx: Ctx) -> Wheel:
    version = await ctx.sh("git describe --tags").text()
    await ctx.sh("uv build --out-dir dist")
    return Wheel(version, f"dist/app-{version}.whl")

@step
async def upload(ctx: Ctx) -> None:
    wheel = ctx.outputs(build_wheel)                 # typed: Wheel
    await ctx.artifacts.upload(f"wheel-{ctx.matrix.python}", [wheel.path])

build = job("build", runs_on="linux", needs=[lint], matrix={"python": ["3.11", "3.13"]},
            steps=["uv sync --locked", build_wheel, upload])

@job(runs_on="linux", needs=[build], environment="production",
     concurrency="deploy-{branch}", timeout="20m")
async def deploy(ctx: Ctx) -> None:
    token = ctx.secrets["DEPLOY_TOKEN"]
    await ctx.sh("./deploy.sh --ref {ref}", ref=ctx.git.ref, env={"TOKEN": token})

ci = workflow("ci", on=[push(branches="main"), pr(paths=["src/**", "!**/*.md"])],
              jobs=[lint, build, deploy])
"""
TOOLS = Path(__file__).with_name("example_tools")
"""To stand first in `PATH`."""
