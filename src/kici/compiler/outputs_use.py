"""Checks `ctx.outputs(…)` and `ctx.outputs_all(…)` in the functions of steps, before anything runs.

Only what can be told from the source is judged: a first argument that is a name, a dotted name or text, in the body of
the step's own function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import Any

from msgspec import Struct

from kici.sdk.jobs import Job
from kici.sdk.problems import Location, refuse
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow

_METHODS = ("outputs", "outputs_all")


class _Use(Struct, frozen=True):
    method: str
    written: str
    """The first argument as the author wrote it."""
    source: Any
    job: Any
    """What `job=` names; None if it is left out."""
    location: Location


def check(workflow: Workflow) -> None:
    """Refuse uses that cannot work in this workflow, at their lines."""
    for job in workflow.jobs:
        for index, step in enumerate(job.steps):
            for use in _uses(step):
                problem = _problem(workflow, job, index, use)
                if problem:
                    refuse(f"ctx.{use.method}({use.written}) in job {job.name!r}", problem, use.location)


def _problem(workflow: Workflow, job: Job[Any], index: int, use: _Use) -> str:
    """Empty if it can work."""
    source = use.source
    named = _named(workflow, use.job if use.job is not None else source if isinstance(source, Job) else None)
    if isinstance(source, Job) and not source.is_function:
        return "the job is made of steps, and its steps have the outputs: name a step"
    if named is None and _has(job, source):
        return _own_problem(job, index, use)
    if named is job:
        return _own_problem(job, index, use) if _has(job, source) else "it is not a step of this job"
    needed = [other for need in job.needs for other in workflow.jobs if other.name == need.name]
    owners = [other for other in ([named] if named else workflow.jobs) if _has(other, source)]
    reachable = [other for other in owners if other in needed]
    if not owners:
        return "no job of the workflow has this step" if named is None else f"job {named.name!r} has no such step"
    if not reachable:
        return f"job {job.name!r} does not need job {owners[0].name!r}: add it to needs=[…]"
    if len(reachable) > 1:
        names = " and ".join(repr(other.name) for other in reachable)
        return f"{names} both have this step: say which one by job=…"
    if use.method == "outputs" and (reachable[0].matrix is not None or reachable[0].include):
        return f"job {reachable[0].name!r} has a matrix, so there are several: use ctx.outputs_all"
    return ""


def _own_problem(job: Job[Any], index: int, use: _Use) -> str:
    if use.method == "outputs_all":
        return "it is a step of this job: use ctx.outputs"
    position = next(i for i, step in enumerate(job.steps) if _is(step, use.source))
    if position == index:
        return "the step asks for what itself returns"
    if any(index in group and position in group for group in job.parallel):
        return "the step runs at the same time: read it in a step after the group"
    return "the step runs later" if position > index else ""


def _has(job: Job[Any], source: Any) -> bool:
    return source is job or any(_is(step, source) for step in job.steps)


def _is(step: Step[Any], source: Any) -> bool:
    """As the runner finds it."""
    return step is source or step.name == source or (isinstance(source, Step) and _key(step) == _key(source))


def _key(step: Step[Any]) -> tuple[str, object]:
    return step.name, step.fn


def _named(workflow: Workflow, job: Any) -> Job[Any] | None:
    if isinstance(job, Job):
        return job
    return next((one for one in workflow.jobs if one.name == job), None)


def _uses(step: Step[Any]) -> Iterator[_Use]:
    code = getattr(step.fn, "__code__", None)
    if code is None or not _mentions(code):
        return
    node = _function(code)
    arguments = [*node.args.posonlyargs, *node.args.args] if node else []
    if node is None or not arguments:
        return
    for call in ast.walk(node):
        if (
            isinstance(call, ast.Call)
            and call.args
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _METHODS
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == arguments[0].arg
        ):
            source = _resolve(step.fn, call.args[0])
            job = next((_resolve(step.fn, word.value) for word in call.keywords if word.arg == "job"), None)
            has_job = any(word.arg == "job" for word in call.keywords)
            if isinstance(source, (Job, Step, str)) and (isinstance(job, (Job, str)) or not has_job):
                where = Location(code.co_filename, call.lineno)
                yield _Use(call.func.attr, ast.unparse(call.args[0]), source, job, where)


def _mentions(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return any(method in code.co_names for method in _METHODS) or any(map(_mentions, inner))


def _function(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in ast.walk(_parsed(code.co_filename)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


@cache
def _parsed(file: str) -> ast.Module:
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read(), file)
    except (OSError, SyntaxError, ValueError):  # made by exec, or in an archive
        return ast.Module(body=[], type_ignores=[])


def _resolve(function: Callable[..., Any] | None, node: ast.expr) -> Any:
    """The object that an expression names when the function is called; None if only running it could tell."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            code = function.__code__ if function else None
            if code and name in code.co_freevars:
                cell = (function.__closure__ or ())[code.co_freevars.index(name)]  # type: ignore[union-attr]
                try:
                    return cell.cell_contents
                except ValueError:
                    return None
            if code and name in code.co_varnames:
                return None
            return getattr(function, "__globals__", {}).get(name)
        case ast.Attribute(value=value, attr=attribute):
            return getattr(_resolve(function, value), attribute, None)
        case _:
            return None
