"""Steps that read what they work on from the job's environment: `SERVICE`."""

import re
from dataclasses import dataclass

from kici import Ctx, step


@dataclass
class Report:
    service: str
    tests: int


@step(timeout="10m")
async def unit_tests(ctx: Ctx) -> Report:
    service = ctx.env["SERVICE"]
    said = await ctx.sh("python3 -m unittest discover -t . -s services/{service} 2>&1", service=service).text()
    ran = re.search(r"^Ran (\d+) test", said, re.MULTILINE)
    return Report(service, int(ran[1]) if ran else 0)


@step
async def pack(ctx: Ctx) -> str:
    """Returns the artifact's name."""
    name = f"service-{ctx.env['SERVICE']}"
    archive = f"{name}.tar.gz"
    await ctx.sh("tar -czf {archive} services/{service}", archive=archive, service=ctx.env["SERVICE"])
    await ctx.artifacts.upload(name, [archive])
    return name
