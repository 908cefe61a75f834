"""Each package is tested when it, or something that it stands on, has changed."""

from kici import Ctx, Job, changed, job, manual, pr, push, step, workflow

STANDS_ON = {"shared": [], "api": ["shared"], "web": ["shared"]}
"""Every package comes after those that it stands on."""


@step
async def test(ctx: Ctx) -> None:
    await ctx.sh("python3 -m unittest discover", cwd=f"packages/{ctx.env['PACKAGE']}")


def tested(package: str, below: list[Job[None]]) -> Job[None]:
    """`on_skip`: a package below that has not changed needs no test, and is no reason not to test this one."""
    packages = [package, *STANDS_ON[package]]
    return job(
        f"test-{package}",
        runs_on="linux",
        needs=[one.when("on_skip") for one in below],
        rules=[changed(*(f"packages/{name}/**" for name in packages), ".kici/**", "!**/*.md")],
        env={"PACKAGE": package, "PYTHONPATH": ":".join(f"../{name}" for name in packages)},
        steps=[test],
    )


tests: dict[str, Job[None]] = {}
for name, below in STANDS_ON.items():
    tests[name] = tested(name, [tests[one] for one in below])


@job(runs_on="linux", needs=[one.when("on_skip") for one in tests.values()], rules=[changed("packages/**")])
async def together(ctx: Ctx) -> list[str]:
    """The packages in one process, and which of them were tested for that."""
    await ctx.sh(
        ["python3", "-c", "import api, web; print(api.offer('Tea', 350), web.row('Tea', 350))"],
        env={"PYTHONPATH": ":".join(f"packages/{name}" for name in STANDS_ON)},
    )
    return [name for name, one in tests.items() if ctx.needs[one].status == "success"]


monorepo = workflow("monorepo", on=[push(branches="main"), pr(), manual()], jobs=[*tests.values(), together])
