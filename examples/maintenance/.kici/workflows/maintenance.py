"""What runs every night and bothers nobody, unless there is something to say."""

from kici import Ctx, hook, job, manual, schedule, step, workflow

WORK = "scratch"
ALLOWED = 3
"""More broken links than this fail the night."""


@step
async def prepare(ctx: Ctx) -> None:
    await ctx.sh("mkdir -p {work} && python3 -m unittest", work=WORK)


@step(timeout="10m")
async def find(ctx: Ctx) -> list[str]:
    """Each finding is a remark at its line, on the page of the run."""
    found = await ctx.sh("python3 links.py docs | tee {work}/links.txt", work=WORK).lines()
    for line in found:
        path, number, target = line.split(":", 2)
        ctx.annotate("warning", f"the link to{target} leads nowhere", file=path, line=int(number))
    ctx.summary("\n".join(["### Broken links", "", *(f"- `{line}`" for line in found or ["none"])]))
    if len(found) > ALLOWED:
        raise RuntimeError(f"{len(found)} links lead nowhere, {ALLOWED} are allowed")
    return found


async def tidy(ctx: Ctx) -> None:
    """Runs however the job ends, also when it is cancelled or takes too long."""
    await ctx.sh("rm -rf {work}", work=WORK)


async def tell(ctx: Ctx) -> None:
    """Put the message to your chat here."""
    ctx.log.error("the night was not quiet", job=ctx.job.name, step=ctx.outcome.failed_step, reason=ctx.outcome.reason)


links = job(
    "links",
    runs_on="linux",
    timeout="30m",
    before_step="date -u",
    steps=[prepare, find],
    on_success=lambda ctx: ctx.log.info("the night was quiet"),
    cleanup=hook(tidy, timeout="1m"),
)


@job(runs_on="linux", needs=[links.when("always")])
async def digest(ctx: Ctx) -> str:
    """Also after a bad night: `always`."""
    return f"links: {ctx.needs[links].status}"


nightly = workflow(
    "nightly",
    on=[schedule("30 4 * * MON-FRI", tz="Europe/Berlin"), manual()],
    jobs=[links, digest],
    concurrency="nightly",
    timeout="1h",
    on_failure=tell,
)
