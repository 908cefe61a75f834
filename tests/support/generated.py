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
CONDITIONS = ("on_success", "always", "on_skip", "on_failure", "failed", "skipped")


class Job(Struct, frozen=True):
    needs: tuple[tuple[int, str], ...]
    """Place of an earlier job, and how it may end."""
    matrix: str
    rule: str
    steps: tuple[str, ...]
    hooks: tuple[tuple[str, str], ...]


class Workflow(Struct, frozen=True):
    jobs: tuple[Job, ...]
    rule: str
    hooks: tuple[tuple[str, str], ...]
    timeout: bool
    """A last job runs until the run's timeout cancels it."""


@st.composite
def workflows(draw: DrawFn) -> Workflow:
    jobs: list[Job] = []
    for place in range(draw(st.integers(1, 4))):
        jobs.append(draw(_jobs(place)))
    rule = draw(st.sampled_from(["", "", "", "yes", "no", "changed"]))
    return Workflow(
        tuple(jobs), rule, draw(_hooks(("on_failure", "cleanup"))), draw(st.sampled_from([False] * 19 + [True]))
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
    )


def _hooks(names: Sequence[str]) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    one = st.tuples(st.sampled_from(names), st.sampled_from(["fine", "fine", '"true"', "breaks"]))
    return st.lists(one, max_size=2, unique_by=lambda hook: hook[0]).map(tuple)


def text(name: str, workflow: Workflow) -> str:
    """Lines of a module that has `HEAD`; the workflow's names begin with `name`."""
    lines = []
    for place, job in enumerate(workflow.jobs):
        needs = ", ".join(f"{name}_{other}.when({condition!r})" for other, condition in job.needs)
        options = ['runs_on="linux"', f"needs=[{needs}]", MATRICES[job.matrix], RULES[job.rule], *_written(job.hooks)]
        steps = ", ".join(_step(number, kind) for number, kind in enumerate(job.steps))
        lines.append(f"{name}_{place} = job({f'job {place}'!r}, steps=[{steps}], {', '.join(filter(None, options))})")
    listed = [f"{name}_{place}" for place in range(len(workflow.jobs))]
    options = [RULES[workflow.rule], *_written(workflow.hooks)]
    if workflow.timeout:
        needs = ", ".join(f'{one}.when("always")' for one in listed)
        lines.append(f'{name}_last = job("last", runs_on="linux", needs=[{needs}], steps=["sleep 60"], on_cancel=fine)')
        listed.append(f"{name}_last")
        options.append('timeout="15s"')
    started = "on=[push(), manual()]"
    rest = ", ".join(filter(None, options))
    lines.append(f"{name} = workflow({name!r}, {started}, jobs=[{', '.join(listed)}], {rest})")
    return "\n".join(lines) + "\n"


def _step(number: int, kind: str) -> str:
    return STEPS[kind].format(name=repr(f"s{number}"), second=repr(f"s{number}b"), key=f"tried-{number}")


def _written(hooks: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}={what}" for name, what in hooks]
