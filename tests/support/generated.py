"""Workflows that nobody would write, for tests that compare two ways of running the same: a strategy, and its text.

What a generated workflow does is decided by its text alone: no step depends on time, on the machine or on the order in
which jobs happen to run.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec import Struct

HEAD = """
import hashlib
from pathlib import Path
from typing import Any

from kici import Ctx, Retry, changed, hook, job, jobs, manual, parallel, push, rule, skip_if, step, workflow


def facts(ctx: Ctx) -> dict[str, Any]:
    return {
        "job": ctx.job.full_name,
        "matrix": dict(ctx.matrix),
        "fanout": [ctx.fanout.index, ctx.fanout.total],
        "needs": {name: [[one.name, one.status] for one in need] for name, need in sorted(ctx.needs.items())},
        "branch": ctx.git.branch,
        "level": ctx.env.get("LEVEL", ""),
    }


def yes(ctx: Ctx) -> bool:
    return bool(ctx.job.name)


def no(ctx: Ctx) -> bool:
    return not ctx.job.name


def raises(ctx: Ctx) -> bool:
    raise LookupError("nobody knows")


async def fine(ctx: Ctx) -> None:
    print(f"ended as {ctx.outcome.status}")


async def breaks(ctx: Ctx) -> None:
    await ctx.sh("exit 9")


async def hands_over(ctx: Ctx) -> None:
    await ctx.set_secret_output("TOKEN", f"token of {ctx.job.full_name}")


def received(ctx: Ctx) -> str:
    return hashlib.sha256(ctx.secrets.get("TOKEN", "none").encode()).hexdigest()


async def uploads(ctx: Ctx) -> None:
    Path("out.txt").write_text(ctx.job.full_name)
    await ctx.artifacts.upload(ctx.job.full_name, "out.txt")


async def downloads(ctx: Ctx) -> dict[str, list[str]]:
    found = {}
    for one in (one for need in ctx.needs.values() for one in need):
        try:
            await ctx.artifacts.download(one.name, f"of/{one.name}")
            found[one.name] = [Path(f"of/{one.name}/out.txt").read_text()]
        except Exception as error:
            found[one.name] = [type(error).__name__]
    return found


async def caches(ctx: Ctx) -> list[Any]:
    # Its own entry, and then those of what it needs.
    wanted = [ctx.job.full_name, *(one.name for need in ctx.needs.values() for one in need)]
    found = []
    for name in wanted:
        async with ctx.cache(f"{ctx.workflow.name} {name}", "cached.txt") as use:
            found.append([use.hit, use.matched_key, Path("cached.txt").read_text() if use.hit else ""])
            Path("cached.txt").write_text(ctx.job.full_name)
    return found


def waits(ctx: Ctx) -> Any:
    print("READY TO BE CANCELLED")
    return ctx.sh("sleep 60")


def values(ctx: Ctx) -> list[str]:
    return ["a", "b"]


def nothing(ctx: Ctx) -> list[str]:
    return []
"""

STEPS = {
    "fine": 'step({name}, "true")',
    "facts": "step({name}, facts)",
    "level": 'step({name}, facts, env={{"LEVEL": "{{branch}}"}})',
    "fails": 'step({name}, "exit 3")',
    "raises": "step({name}, raises)",
    "tolerated": 'step({name}, "exit 4", continue_on_error=True)',
    "flaky": 'step({name}, "test -e .{key} || {{ touch .{key}; exit 7; }}", retry=Retry(3, delay="10ms"))',
    "hopeless": 'step({name}, "exit 5", retry=Retry(2, delay="10ms"))',
    "slow": 'step({name}, "sleep 60", timeout="200ms")',
    "skipped": "step({name}, facts, rules=[yes, no])",
    "unchanged": 'step({name}, "exit 1", rules=changed("docs/**"))',
    "cleaned": 'step({name}, "exit 2", cleanup=fine)',
    "untidy": 'step({name}, "true", cleanup="exit 6")',
    "together": 'parallel(step({name}, facts), step({second}, "true"), fail_fast=False)',
    "apart": 'parallel(step({name}, "exit 8"), step({second}, "true"), fail_fast=False)',
    "halted": 'parallel(step({name}, "exit 8"), step({second}, "sleep 60"))',
    "hands over": "step({name}, hands_over)",
    "received": "step({name}, received)",
    "uploads": "step({name}, uploads)",
    "downloads": "step({name}, downloads)",
    "caches": "step({name}, caches)",
    "in turn": "parallel(step({name}, facts), step({second}, facts), max_parallel=1)",
}
RULES = {
    "": "",
    "yes": "rules=yes",
    "no": 'rules=[rule("never", no)]',
    "raises": "rules=raises",
    "negated": 'rules=skip_if("named", yes)',
    "changed": 'rules=changed("src/**")',
    "unchanged": 'rules=[changed("docs/**"), yes]',
}
HOOKS = ("on_success", "on_failure", "on_cancel", "cleanup", "before_step", "after_step")
MATRICES = {
    "": "",
    "one": 'matrix=["x"]',
    "two": 'matrix={"side": ["left", "right"]}',
    "cut": 'matrix={"a": [1, 2], "b": [1, 2]}, exclude=[{"a": 2}], include=[{"a": 3, "b": 3}], max_parallel=1',
    "asked": "matrix=values",
    "empty": "matrix=nothing",
}
GENERATORS = {
    "two": """    return [
        job(NAME + " a", runs_on="linux", steps=[STEPS]),
        job(NAME + " b", runs_on="linux", needs=[NAME + " a"], matrix=["u", "v"], steps=["true"]),
    ]""",
    "yields": """    title = NAME
    for letter in "abc":
        yield job(f"{title} {letter}", runs_on="linux", steps=[STEPS])""",
    "asks": """    title = NAME
    needed = [one.name for need in ctx.needs.values() for one in need]
    return [job(f"{title} {number}", runs_on="linux", steps=[STEPS]) for number, _ in enumerate(needed)]""",
    "none": "    return []",
    "raises": "    raise LookupError(NAME)",
    "wrong": """    return [job(NAME + " a", runs_on="linux", needs=["nobody"], steps=[STEPS])]""",
}
PERMISSIONS = (
    *[""] * 5,
    "'read-all'",
    "{'artifacts': 'write'}",
    "{'secret_outputs': 'write', 'caches': 'write'}",
    "{}",
)
RESOURCES = (*[""] * 14, 'resources={"cpus": 1, "memory": "1g"}', 'resources={"requests": {"memory": "1000000g"}}')
ENDINGS = (*[""] * 37, "timeout", "person", "person")
CONDITIONS = ("on_success", "always", "on_skip", "on_failure", "failed", "skipped")


class Job(Struct, frozen=True):
    needs: tuple[tuple[int, str], ...]
    """Place of an earlier job, and how it may end."""
    matrix: str
    rule: str
    steps: tuple[str, ...]
    hooks: tuple[tuple[str, str], ...]
    generator: str = ""
    """It is none itself: a function makes jobs with its steps."""
    resources: str = ""


class Workflow(Struct, frozen=True):
    jobs: tuple[Job, ...]
    rule: str
    hooks: tuple[tuple[str, str], ...]
    ending: str
    """Of a last job, which runs until the run's `timeout` cancels it, or a `person` does; empty = there is none."""
    permissions: str = ""


@st.composite
def workflows(draw: DrawFn) -> Workflow:
    jobs: list[Job] = []
    for place in range(draw(st.integers(1, 4))):
        jobs.append(draw(_jobs(place)))
    rule = draw(st.sampled_from(["", "", "", "yes", "no", "changed"]))
    return Workflow(
        tuple(jobs),
        rule,
        draw(_hooks(("on_failure", "cleanup"))),
        draw(st.sampled_from(ENDINGS)),
        draw(st.sampled_from(PERMISSIONS)),
    )


@st.composite
def _jobs(draw: DrawFn, place: int) -> Job:
    needed = draw(st.lists(st.integers(0, place - 1), unique=True, max_size=2)) if place else []
    return Job(
        needs=tuple((one, draw(st.sampled_from(CONDITIONS))) for one in needed),
        matrix=draw(st.sampled_from(["", "", "", *MATRICES])),
        rule=draw(st.sampled_from(["", "", "", "", *RULES])),
        steps=tuple(draw(st.lists(st.sampled_from(["fine", "facts", *STEPS]), min_size=1, max_size=3))),
        hooks=draw(_hooks(HOOKS)),
        generator=draw(st.sampled_from([""] * 9 + list(GENERATORS))),
        resources=draw(st.sampled_from(RESOURCES)),
    )


def _hooks(names: Sequence[str]) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    one = st.tuples(st.sampled_from(names), st.sampled_from(["fine", "fine", '"true"', "breaks"]))
    return st.lists(one, max_size=2, unique_by=lambda hook: hook[0]).map(tuple)


def text(name: str, workflow: Workflow) -> str:
    """Lines of a module that has `HEAD`; the workflow's names begin with `name`."""
    lines = []
    for place, job in enumerate(workflow.jobs):
        needs = ", ".join(f"{name}_{other}.when({condition!r})" for other, condition in job.needs)
        if job.generator:
            lines.append(_generator(f"{name}_{place}", f"job {place}", needs, job))
            continue
        options = ['runs_on="linux"', f"needs=[{needs}]", MATRICES[job.matrix], RULES[job.rule], *_written(job.hooks)]
        options.append(job.resources)
        steps = ", ".join(_step(number, kind) for number, kind in enumerate(job.steps))
        lines.append(f"{name}_{place} = job({f'job {place}'!r}, steps=[{steps}], {', '.join(filter(None, options))})")
    listed = [f"{name}_{place}" for place in range(len(workflow.jobs))]
    options = [RULES[workflow.rule], *_written(workflow.hooks)]
    if workflow.permissions:
        options.append(f"permissions={workflow.permissions}")
    if workflow.ending:
        needs = ", ".join(f'{one}.when("always")' for one in listed)
        lines.append(
            f'{name}_last = job("last", runs_on="linux", needs=[{needs}], steps=[step("wait", waits)], on_cancel=fine)'
        )
        listed.append(f"{name}_last")
    if workflow.ending == "timeout":
        options.append('timeout="15s"')
    started = "on=[push(), manual()]"
    rest = ", ".join(filter(None, options))
    lines.append(f"{name} = workflow({name!r}, {started}, jobs=[{', '.join(listed)}], {rest})")
    return "\n".join(lines) + "\n"


def _generator(variable: str, title: str, needs: str, job: Job) -> str:
    steps = ", ".join(_step(number, kind) for number, kind in enumerate(job.steps))
    body = GENERATORS[job.generator].replace("NAME", repr(title)).replace("STEPS", steps)
    return f"@jobs({title!r}, needs=[{needs}])\ndef {variable}(ctx: Ctx) -> Any:\n{body}"


def _step(number: int, kind: str) -> str:
    return STEPS[kind].format(name=repr(f"s{number}"), second=repr(f"s{number}b"), key=f"tried-{number}")


def _written(hooks: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}={what}" for name, what in hooks]
