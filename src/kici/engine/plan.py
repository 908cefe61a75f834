"""From a workflow and an event to the jobs of a run. The orchestrator, `kici preview` and `kici run local` share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import labels, matrix, patterns, templates, trigger_problems
from kici.engine.concurrency import MAX_GROUP_CHARS
from kici.engine.errors import EngineError, MatrixError, TemplateError
from kici.engine.events import Event
from kici.engine.lifecycle import TERMINAL_JOB
from kici.engine.lockfile import LockConcurrency, LockFile, LockJob, LockWorkflow

MAX_JOBS_PER_RUN = 1_000


class PlannedNeed(Struct, frozen=True):
    upstream: str
    """Name of a planned job, with the matrix suffix."""
    run_on: frozenset[str]


class PlannedJob(Struct, frozen=True):
    name: str
    """With the matrix suffix."""
    job: LockJob
    position: int
    """In the run, from 0."""
    matrix: dict[str, str]
    needs: tuple[PlannedNeed, ...]
    requirement: labels.Requirement
    environment: str = ""
    env: dict[str, str] = {}
    concurrency_group: str = ""
    problem: str = ""
    """Set if the job cannot be made: it is recorded as failed with this sentence."""


class Plan(Struct, frozen=True):
    jobs: tuple[PlannedJob, ...]
    """In the lock file's order; a job's combinations side by side. Ends at 1,000 jobs: see `problem`."""
    problem: str = ""
    """Set if the run as a whole cannot be made."""
    concurrency_group: str = ""
    """Of the whole run."""
    concurrency_problem: str = ""
    """Set if that cannot be said: where groups count, the run cannot be made."""


def plan(workflow: LockWorkflow, event: Event) -> Plan:
    """Fan out the matrices, connect the needs, expand the templates.

    A need on a job with a matrix is one on each of its combinations.
    """
    fanned = {job.name: list(_fan_out(workflow, job, event)) for job in workflow.jobs}
    planned: list[PlannedJob] = []
    for job in workflow.jobs:
        needs = tuple(
            PlannedNeed(upstream.name, frozenset(need.run_on))
            for need in job.needs
            for upstream in fanned.get(need.job, ())
        )
        for one in fanned[job.name]:
            planned.append(replace(one, position=len(planned), needs=needs))
    if len(planned) > MAX_JOBS_PER_RUN:
        problem = f"workflow {workflow.name!r} gives {len(planned)} jobs; the limit is {MAX_JOBS_PER_RUN}: split it"
        return Plan((), problem)
    group, problem = _run_group(workflow, event)
    return Plan(tuple(planned), concurrency_group=group, concurrency_problem=problem)


def validate(lock: LockFile) -> list[str]:
    """Everything that makes a lock file unusable although it follows its schema, one sentence each."""
    problems = []
    names = [workflow.name for workflow in lock.workflows]
    problems += [f"two workflows are called {name!r}: rename one" for name in _twice(names)]
    for workflow in lock.workflows:
        problems += [f"workflow {workflow.name!r}: {problem}" for problem in _workflow_problems(workflow)]
    return problems


def _fan_out(workflow: LockWorkflow, job: LockJob, event: Event) -> Iterator[PlannedJob]:
    wanted = labels.requirement(job.runs_on, job.exclude_labels)
    if job.matrix is None and not job.include:
        yield _expanded(workflow, PlannedJob(job.name, job, 0, {}, (), wanted), event)
        return
    try:
        combinations = matrix.expand(job.matrix or {}, job.include, job.exclude)
    except MatrixError as error:
        yield PlannedJob(job.name, job, 0, {}, (), wanted, problem=f"job {job.name!r}: {error}")
        return
    for one in combinations:
        name = f"{job.name} ({one.suffix})"
        yield _expanded(workflow, PlannedJob(name, job, 0, one.values, (), wanted), event)


def _expanded(workflow: LockWorkflow, planned: PlannedJob, event: Event) -> PlannedJob:
    job = planned.job
    values = templates.fields(event, workflow=workflow.name, job=job.name, matrix=planned.matrix)
    concurrency = job.concurrency
    try:
        return replace(
            planned,
            environment=templates.expand(job.environment, values) if job.environment else "",
            env={name: templates.expand(text, values) for name, text in (workflow.env | job.env).items()},
            concurrency_group=_group(concurrency.group, values) if concurrency else "",
        )
    except EngineError as error:
        return replace(planned, problem=f"job {planned.name!r}: {error}")


def _run_group(workflow: LockWorkflow, event: Event) -> tuple[str, str]:
    """The group of the whole run, or why it has none. `{job}` and `{matrix.NAME}` stand for nothing there."""
    if workflow.concurrency is None:
        return "", ""
    values = templates.fields(event, workflow=workflow.name, job="", matrix={})
    try:
        return _group(workflow.concurrency.group, values), ""
    except EngineError as error:
        return "", f"the concurrency of workflow {workflow.name!r}: {error}"


def _group(template: str, values: Mapping[str, str]) -> str:
    """A field that the event does not have is an error: `ci-` would be one group for everybody."""
    group = templates.expand(template, values, strict=True)
    if not group.strip():
        raise TemplateError(f"template {template!r} gives an empty name of a concurrency group")
    if len(group) > MAX_GROUP_CHARS:
        raise TemplateError(
            f"template {template!r} gives a name of {len(group)} characters; a concurrency group has up to"
            f" {MAX_GROUP_CHARS}"
        )
    return group


def _workflow_problems(workflow: LockWorkflow) -> Iterator[str]:
    if not workflow.jobs:
        yield "it has no jobs"
    yield from trigger_problems.problems(workflow.triggers)
    yield from (f"two jobs are called {name!r}: rename one" for name in _twice([job.name for job in workflow.jobs]))
    yield from _concurrency_problems(workflow.concurrency, "the workflow")
    names = {job.name for job in workflow.jobs}
    for job in workflow.jobs:
        where = f"job {job.name!r}"
        yield from (f"{where} {problem}" for problem in _job_problems(job, names))
        yield from _concurrency_problems(job.concurrency, where)
        for template in (*workflow.env.values(), *job.env.values(), job.environment or ""):
            yield from _refusal(partial(templates.check, template), where)
        for pattern in (*job.runs_on, *job.exclude_labels):
            yield from _refusal(partial(patterns.check, pattern), where)
    cycle = _cycle({job.name: [need.job for need in job.needs if need.job in names] for job in workflow.jobs})
    if cycle:
        yield f"jobs need each other in a circle: {' → '.join(cycle)}"


def _job_problems(job: LockJob, names: set[str]) -> Iterator[str]:
    if not job.runs_on or not all(pattern for pattern in job.runs_on):
        yield 'says no label in runs_on: write for example runs_on="linux"'
    if not job.steps:
        yield "has no steps"
    yield from (f"has two steps called {name!r}: rename one" for name in _twice([step.name for step in job.steps]))
    for need in job.needs:
        if need.job == job.name:
            yield "needs itself"
        elif need.job not in names:
            yield f"needs {need.job!r}, which is not among the workflow's jobs"
        unknown = set(need.run_on) - TERMINAL_JOB
        if unknown or not need.run_on:
            shown = ", ".join(sorted(unknown)) or "nothing"
            yield f"needs {need.job!r} to end as {shown}; a job ends as {', '.join(sorted(TERMINAL_JOB))}"
    both = {pattern for pattern in job.runs_on if isinstance(pattern, str)} & {
        pattern for pattern in job.exclude_labels if isinstance(pattern, str)
    }
    yield from (f"requires and excludes the label {label!r}" for label in sorted(both))
    if job.matrix is not None or job.include:
        yield from _refusal(
            lambda: matrix.expand(job.matrix or {}, job.include, job.exclude), "has a matrix that fails"
        )
    if job.max_parallel is not None and job.max_parallel < 1:
        yield f"has max_parallel {job.max_parallel}; it is at least 1"
    if job.timeout_ms is not None and job.timeout_ms <= 0:
        yield "has a timeout that is not positive"
    yield from (
        f"has a step {step.name!r} with a timeout that is not positive" for step in job.steps if step.timeout_ms <= 0
    )


def _concurrency_problems(concurrency: LockConcurrency | None, where: str) -> Iterator[str]:
    if concurrency is None:
        return
    yield from _refusal(partial(templates.check, concurrency.group), where)
    if concurrency.max < 1:
        yield f"{where} has a concurrency of max {concurrency.max}; it is at least 1"
    if concurrency.pending not in ("keep-latest", "queue"):
        yield f"{where} has concurrency pending={concurrency.pending!r}; it is 'keep-latest' or 'queue'"


def _refusal(check: Callable[[], object], where: str) -> Iterator[str]:
    try:
        check()
    except EngineError as error:
        yield f"{where}: {error}"


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _cycle(needs: Mapping[str, list[str]]) -> list[str]:
    """Some circle, first name again at the end; empty if there is none."""
    done: set[str] = set()
    for start in needs:
        trail: list[str] = []
        stack = [iter([start])]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                if trail:
                    done.add(trail.pop())
            elif following in trail:
                return [*trail[trail.index(following) :], following]
            elif following not in done:
                trail.append(following)
                stack.append(iter(needs[following]))
    return []
