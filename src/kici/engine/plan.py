"""From a workflow and an event to the jobs of a run. The orchestrator, `kici preview` and `kici run local` share it.

What only running code can tell is planned as two things: a job `init: NAME` that asks the code, and a stand-in for what
comes of it, which is `engine.expansion`'s once that job has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import evaluation, labels, matrix, rules, templates
from kici.engine.concurrency import MAX_GROUP_CHARS
from kici.engine.errors import EngineError, MatrixError, TemplateError
from kici.engine.events import Event
from kici.engine.lockfile import Level, LockGenerator, LockJob, LockWorkflow
from kici.engine.validation import validate

__all__ = ["MAX_JOBS_PER_RUN", "Frame", "Plan", "PlannedJob", "PlannedNeed", "Seed", "fan_out", "plan", "validate"]

MAX_JOBS_PER_RUN = 1_000


class PlannedNeed(Struct, frozen=True):
    upstream: str
    """Name of a planned job, with the matrix suffix."""
    run_on: frozenset[str]


class Frame(Struct, frozen=True, rename="camel"):
    """What a workflow gives each of its jobs."""

    workflow: str
    env: dict[str, str] = {}
    """Values are templates."""
    permissions: dict[str, Level] | None = None


class Seed(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a stand-in is made into jobs from, together with the event and the evaluation's result."""

    frame: Frame
    job: LockJob | None = None
    """The dynamic job as the lock file has it; None for a generator."""
    generators: tuple[str, ...] = ()
    """Names of all generators of the workflow: what the jobs that one makes may need."""


class PlannedJob(Struct, frozen=True):
    name: str
    """With the matrix suffix."""
    job: LockJob
    position: int
    """In the run, from 0. Behind a stand-in there is room for what it becomes."""
    matrix: dict[str, str]
    needs: tuple[PlannedNeed, ...]
    requirement: labels.Requirement
    environment: str = ""
    env: dict[str, str] = {}
    concurrency_group: str = ""
    problem: str = ""
    """Set if the job cannot be made: it is recorded as failed with this sentence."""
    skip: str = ""
    """Set if its rules say that it need not run: it is recorded as skipped with this sentence."""
    seed: Seed | None = None
    """Set: it is a stand-in, and never runs itself."""
    generated_by: str = ""
    """Name of the generator that made it."""
    carried: bool = False
    """The lock file does not have it as it is: its definition goes with it to whoever runs it."""


class Plan(Struct, frozen=True):
    jobs: tuple[PlannedJob, ...]
    """In the lock file's order; a job's combinations side by side, a generator before the first job that needs it. Ends
    at 1,000 jobs: see `problem`."""
    problem: str = ""
    """Set if the run as a whole cannot be made."""
    concurrency_group: str = ""
    """Of the whole run."""
    concurrency_problem: str = ""
    """Set if that cannot be said: where groups count, the run cannot be made."""
    warnings: tuple[str, ...] = ()


def plan(workflow: LockWorkflow, event: Event) -> Plan:
    """Fan out the matrices, connect the needs, expand the templates, ask the rules that need no code.

    A need on a job with a matrix is one on each of its combinations.
    """
    frame = _frame(workflow)
    order = list(_in_order(workflow))
    planned: dict[str, list[PlannedJob]] = {}
    warnings = []
    for one in order:
        if isinstance(one, LockJob):
            verdict = rules.decide(one.rules, event.changed_files)
            if verdict.warning:
                warnings.append(f"job {one.name!r}: {verdict.warning}")
            if verdict.passed and one.dynamic:
                planned |= _with_stand_in(workflow, one, event)
            else:
                static = replace(one, dynamic=()) if one.dynamic else one
                planned[one.name] = [replace(job, skip=verdict.reason) for job in fan_out(frame, static, event)]
        else:
            planned |= _with_stand_in(workflow, one, event)
    jobs = list(_connected(planned))
    if len(jobs) > MAX_JOBS_PER_RUN:
        problem = f"workflow {workflow.name!r} gives {len(jobs)} jobs; the limit is {MAX_JOBS_PER_RUN}: split it"
        return Plan((), problem)
    group, problem = _run_group(workflow, event)
    return Plan(tuple(jobs), concurrency_group=group, concurrency_problem=problem, warnings=tuple(warnings))


def fan_out(frame: Frame, job: LockJob, event: Event) -> Iterator[PlannedJob]:
    """The job, or its combinations, with templates expanded; `position` and `needs` are left to the caller."""
    wanted = labels.of_job(job)
    if job.permissions != frame.permissions:  # also those of a job that a generator has made: it cannot give itself any
        job = replace(job, permissions=frame.permissions)
    if job.matrix is None and not job.include:
        yield _expanded(frame, PlannedJob(job.name, job, 0, {}, (), wanted), event)
        return
    try:
        combinations = matrix.expand(job.matrix or {}, job.include, job.exclude)
    except MatrixError as error:
        yield PlannedJob(job.name, job, 0, {}, (), wanted, problem=f"job {job.name!r}: {error}")
        return
    for one in combinations:
        name = f"{job.name} ({one.suffix})"
        yield _expanded(frame, PlannedJob(name, job, 0, one.values, (), wanted), event)


def _frame(workflow: LockWorkflow) -> Frame:
    return Frame(workflow.name, workflow.env, workflow.permissions)


def _in_order(workflow: LockWorkflow) -> Iterator[LockJob | LockGenerator]:
    """Jobs as they stand, each generator before the first that needs it, at the latest at the end."""
    generators = {one.name: one for one in workflow.generators}

    def needed_by(one: LockJob | LockGenerator) -> Iterator[LockGenerator]:
        for need in one.needs:
            generator = generators.pop(need.job, None)
            if generator is not None:
                yield from needed_by(generator)
                yield generator

    for job in workflow.jobs:
        yield from needed_by(job)
        yield job
    while generators:
        generator = generators.pop(next(iter(generators)))
        yield from needed_by(generator)
        yield generator


def _with_stand_in(workflow: LockWorkflow, of: LockJob | LockGenerator, event: Event) -> dict[str, list[PlannedJob]]:
    """The job that asks the code, and the stand-in for what comes of it."""
    wanted = labels.of_job(of) if isinstance(of, LockJob) else labels.requirement(of.runs_on, of.exclude_labels)
    frame = _frame(workflow)
    init = evaluation.init_job(of)
    seed = Seed(
        frame,
        of if isinstance(of, LockJob) else None,
        tuple(one.name for one in workflow.generators),
    )
    stand_in = (
        replace(of, needs=evaluation.awaited(of))
        if isinstance(of, LockJob)
        else LockJob(of.name, (), of.runs_on, of.exclude_labels, evaluation.awaited(of), location=of.location)
    )
    return {
        init.name: [replace(one, carried=True) for one in fan_out(frame, init, event)],
        of.name: [PlannedJob(of.name, stand_in, 0, {}, (), wanted, seed=seed)],
    }


def _connected(planned: Mapping[str, Iterable[PlannedJob]]) -> Iterator[PlannedJob]:
    """With their places and needs."""
    position = 0
    for several in planned.values():
        for one in several:
            needs = tuple(
                PlannedNeed(upstream.name, frozenset(need.run_on))
                for need in one.job.needs
                for upstream in planned.get(need.job, ())
            )
            yield replace(one, position=position, needs=needs)
            position += 1 if one.seed is None else MAX_JOBS_PER_RUN


def _expanded(frame: Frame, planned: PlannedJob, event: Event) -> PlannedJob:
    job = planned.job
    values = templates.fields(event, workflow=frame.workflow, job=job.name, matrix=planned.matrix)
    concurrency = job.concurrency
    try:
        return replace(
            planned,
            environment=templates.expand(job.environment, values) if job.environment else "",
            env={name: templates.expand(text, values) for name, text in (frame.env | job.env).items()},
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
