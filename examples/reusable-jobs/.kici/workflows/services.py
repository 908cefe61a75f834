"""What runs for the services of this repository. The jobs come from `.kici/lib`."""

from kici import Ctx, job, manual, push, workflow

from lib.company import pack, python_service, unit_tests

services = [
    python_service("billing", extra=["echo billing checks its ledgers"]),
    python_service("search"),
]


@job(runs_on="linux", needs=services)
async def summary(ctx: Ctx) -> dict[str, int]:
    """Tests of each service. Several jobs have the step, so it is asked for with its job."""
    tests = {}
    for service in services:
        report = ctx.outputs(unit_tests, job=service)
        tests[report.service] = report.tests
        await ctx.artifacts.download(ctx.outputs(pack, job=service), into="packages")
    await ctx.sh("ls -l packages")
    return tests


flow = workflow("services", on=[push(branches="main"), manual()], jobs=[*services, summary])
