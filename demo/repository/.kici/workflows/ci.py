"""What runs when somebody pushes to main."""

from dataclasses import dataclass

from kici import Ctx, job, manual, push, step, workflow


@dataclass
class Greeting:
    text: str
    length: int


@step(timeout="1m")
async def greet(ctx: Ctx) -> Greeting:
    """A step's return value is typed, checked and handed on."""
    text = await ctx.sh("python3 greet.py {name}", name=ctx.git.branch).text()
    return Greeting(text, len(text))


build = job("build", runs_on="linux", steps=["git log --oneline -1", greet])


@step
async def measure(ctx: Ctx) -> int:
    greeting = ctx.outputs(greet)
    ctx.log.info(f"{ctx.matrix.case} case of {greeting.text!r}")
    shouted = greeting.text.upper() if ctx.matrix.case == "upper" else greeting.text.lower()
    await ctx.sh("for word in {text}; do echo $word; sleep 0.2; done", text=shouted.split())
    return greeting.length


test = job(
    "test",
    runs_on="linux",
    needs=[build],
    matrix={"case": ["lower", "upper"]},
    steps=[
        "python3 -m unittest -q",
        step("style", "echo 'two lines are too long' >&2; exit 3", continue_on_error=True),
        measure,
    ],
)


@job(runs_on="linux", needs=[test])
async def report(ctx: Ctx) -> str:
    lengths = [output.value for output in ctx.outputs_all(measure)]
    summary = f"{len(lengths)} tests agree on {max(lengths)} characters"
    ctx.log.info(summary)
    return summary


ci = workflow("ci", on=[push(branches="main"), manual()], jobs=[build, test, report])
