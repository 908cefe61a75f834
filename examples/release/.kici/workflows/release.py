"""A tag becomes a release: built for each platform, put together, with checksums and notes. By hand, as a rehearsal."""

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from kici import Ctx, job, manual, rule, step, tag, workflow
from msgspec import Meta


class Channel(Enum):
    STABLE = "stable"
    BETA = "beta"


@dataclass
class Inputs:
    """Of a start by hand."""

    version: Annotated[str, Meta(pattern=r"^v\d+\.\d+\.\d+$")] = "v0.0.0"
    channel: Channel = Channel.BETA
    rehearsal: bool = True


@job(runs_on="linux")
async def test(ctx: Ctx) -> None:
    await ctx.sh("python3 -m unittest", env={"PYTHONPATH": "src"})


@dataclass
class Plan:
    version: str
    channel: str
    rehearsal: bool


@job(runs_on="linux")
async def plan(ctx: Ctx) -> Plan:
    """A tag says it all; a start by hand says it by its inputs, which are checked before anything runs."""
    if ctx.git.tag:
        return Plan(ctx.git.tag, Channel.STABLE.value, rehearsal=False)
    inputs = ctx.inputs_as(Inputs)
    return Plan(inputs.version, inputs.channel.value, inputs.rehearsal)


@step
async def pack(ctx: Ctx) -> str:
    """Each combination gives its artifact a name of its own."""
    name = f"greet-{ctx.matrix.format}"
    version = ctx.outputs(plan).version
    target = f"dist/greet-{version}.{ctx.matrix.format}"
    await ctx.sh("mkdir -p dist")
    if ctx.matrix.format == "pyz":
        await ctx.sh("python3 -m zipapp src --main greet:main --output {target}", target=target)
    else:
        await ctx.sh("git archive --prefix greet-{version}/ --output {target} HEAD src", version=version, target=target)
    await ctx.artifacts.upload(name, [target])
    return name


build = job("build", runs_on="linux", needs=[test, plan], matrix={"format": ["pyz", "tar.gz"]}, steps=[pack])


@step
async def collect(ctx: Ctx) -> dict[str, str]:
    """Files and their SHA-256, as `sha256sum --check SHA256SUMS` wants them."""
    for packed in ctx.outputs_all(pack):
        await ctx.artifacts.download(packed.value, into="release")
    files = sorted(Path("release/dist").iterdir())
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    Path("release/dist/SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    return sums


# Shell code adds to the page of the run by a file, and to later steps by others ($KICI_ENV, $KICI_PATH, $KICI_OUTPUT).
check = step(
    "check",
    """
    (cd release/dist && sha256sum --check SHA256SUMS)
    python3 release/dist/*.pyz Ada Ada
    { echo '### Files'; echo; sed 's/^/    /' release/dist/SHA256SUMS; } >> "$KICI_SUMMARY"
    """,
)


@step
async def notes(ctx: Ctx) -> str:
    version = ctx.outputs(plan).version
    page = Path("notes", f"{version}.md")
    text = page.read_text() if page.exists() else "- A rehearsal.\n"
    ctx.summary(f"### {version}\n\n{text}")
    return text


@step
async def upload(ctx: Ctx) -> None:
    await ctx.artifacts.upload(f"greet-{ctx.outputs(plan).version}", "release/dist")


assemble = job("assemble", runs_on="linux", needs=[plan, build], steps=[collect, check, notes, upload])


@rule("not a rehearsal")
async def for_real(ctx: Ctx) -> bool:
    return not ctx.outputs(plan).rehearsal


@job(runs_on="linux", needs=[plan, assemble], rules=[for_real], concurrency="publish")
async def publish(ctx: Ctx) -> str:
    """What everybody gets is the artifact that was tried, not another build. Put the upload to your registry here."""
    release = ctx.outputs(plan)
    await ctx.artifacts.download(f"greet-{release.version}", into="published")
    await ctx.sh("ls -l published/release/dist")
    return f"{release.version} in {release.channel}"


release = workflow(
    "release",
    on=[tag("v*"), manual(inputs=Inputs)],
    jobs=[test, plan, build, assemble, publish],
    timeout="1h",
)
