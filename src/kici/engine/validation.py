"""What makes a lock file unusable although it follows its schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from kici.engine import evaluation, matrix, patterns, permissions, resources, templates, trigger_problems
from kici.engine.circles import circle
from kici.engine.errors import EngineError
from kici.engine.lifecycle import TERMINAL_JOB
from kici.engine.lockfile import (
    HOOKS,
    LockCheckout,
    LockConcurrency,
    LockFile,
    LockGenerator,
    LockJob,
    LockRule,
    LockStep,
    LockWorkflow,
    StepKind,
)


def validate(lock: LockFile) -> list[str]:
    """Everything that makes a lock file unusable although it follows its schema, one sentence each."""
    problems = []
    names = [workflow.name for workflow in lock.workflows]
    problems += [f"two workflows are called {name!r}: rename one" for name in _twice(names)]
    for workflow in lock.workflows:
        problems += [f"workflow {workflow.name!r}: {problem}" for problem in _workflow_problems(workflow)]
    return problems


def _workflow_problems(workflow: LockWorkflow) -> Iterator[str]:
    if not workflow.jobs and not workflow.generators:
        yield "it has no jobs"
    yield from trigger_problems.problems(workflow.triggers)
    jobs = [job.name for job in workflow.jobs]
    generators = [generator.name for generator in workflow.generators]
    made = [*jobs, *generators]
    yield from (f"two jobs are called {name!r}: rename one" for name in _twice(jobs))
    inits = map(evaluation.init_name, [*(job.name for job in workflow.jobs if job.dynamic), *generators])
    for name in sorted({*_twice([*made, *inits])} - {*_twice(jobs)}):
        yield f"{name!r} is the name of a job and of a generator, or of an init job: rename one"
    yield from _concurrency_problems(workflow.concurrency, "the workflow")
    yield from _rules_problems(workflow.rules, "the workflow")
    yield from permissions.problems(workflow.permissions)
    names = set(made)
    for job in workflow.jobs:
        yield from job_problems(job, workflow.env, names)
    for generator in workflow.generators:
        yield from _generator_problems(generator, names)
    needs = {job.name: job.needs for job in workflow.jobs} | {one.name: one.needs for one in workflow.generators}
    found = circle({name: [need.job for need in wanted if need.job in names] for name, wanted in needs.items()})
    if found:
        yield f"jobs need each other in a circle: {' → '.join(found)}"


def job_problems(job: LockJob, workflow_env: Mapping[str, str], names: Collection[str]) -> Iterator[str]:
    """What is wrong with one job, each a sentence that begins with its name. `names`: what it may need."""
    where = f"job {job.name!r}"
    yield from (f"{where} {problem}" for problem in _job_problems(job, names))
    yield from _concurrency_problems(job.concurrency, where)
    for template in (*workflow_env.values(), *job.env.values(), job.environment or ""):
        yield from _refusal(partial(templates.check, template), where)
    for pattern in (*job.runs_on, *job.exclude_labels):
        yield from _refusal(partial(patterns.check, pattern), where)
    yield from _rules_problems(job.rules, where)
    yield from _hooks_problems(job.hooks, ("before_step", "after_step"), where)
    yield from _dynamic_problems(job, where)
    yield from _parallel_problems(job, where)
    yield from _checkout_problems(job.checkout, where)
    for step in job.steps:
        yield from _step_problems(step, f"{where}: step {step.name!r}")


def _job_problems(job: LockJob, names: Collection[str]) -> Iterator[str]:
    if not job.steps:
        yield "has no steps"
    yield from (f"has two steps called {name!r}: rename one" for name in _twice([step.name for step in job.steps]))
    yield from _steps_order(job)
    yield from _needs_problems(job, names)
    yield from _labels_problems(job)
    if "matrix" not in job.dynamic and (job.matrix is not None or job.include):
        yield from _refusal(
            lambda: matrix.expand(job.matrix or {}, job.include, job.exclude), "has a matrix that fails"
        )
    if job.max_parallel is not None and job.max_parallel < 1:
        yield f"has max_parallel {job.max_parallel}; it is at least 1"
    if job.timeout_ms is not None and job.timeout_ms <= 0:
        yield "has a timeout that is not positive"
    yield from resources.problems(job.resources)
    if job.permissions is not None:
        yield "has permissions, which only its workflow may have"
    yield from (
        f"has a step {step.name!r} with a timeout that is not positive" for step in job.steps if step.timeout_ms <= 0
    )


def _needs_problems(one: LockJob | LockGenerator, names: Collection[str]) -> Iterator[str]:
    for need in one.needs:
        if need.job == one.name:
            yield "needs itself"
        elif need.job not in names:
            yield f"needs {need.job!r}, which is not among the workflow's jobs"
        unknown = set(need.run_on) - TERMINAL_JOB
        if unknown or not need.run_on:
            shown = ", ".join(sorted(unknown)) or "nothing"
            yield f"needs {need.job!r} to end as {shown}; a job ends as {', '.join(sorted(TERMINAL_JOB))}"


def _labels_problems(one: LockJob | LockGenerator) -> Iterator[str]:
    if not one.runs_on or not all(pattern for pattern in one.runs_on):
        yield 'says no label in runs_on: write for example runs_on="linux"'
    both = {pattern for pattern in one.runs_on if isinstance(pattern, str)} & {
        pattern for pattern in one.exclude_labels if isinstance(pattern, str)
    }
    yield from (f"requires and excludes the label {label!r}" for label in sorted(both))


def _generator_problems(generator: LockGenerator, names: Collection[str]) -> Iterator[str]:
    where = f"jobs {generator.name!r}"
    for problem in (*_needs_problems(generator, names), *_labels_problems(generator)):
        yield f"{where} {problem}"
    for pattern in (*generator.runs_on, *generator.exclude_labels):
        yield from _refusal(partial(patterns.check, pattern), where)
    if generator.timeout_ms <= 0:
        yield f"{where} has a timeout that is not positive"


def _dynamic_problems(job: LockJob, where: str) -> Iterator[str]:
    for option in job.dynamic:
        if option not in evaluation.DYNAMIC:
            yield f"{where}: {option!r} cannot be dynamic; {', '.join(sorted(evaluation.DYNAMIC))} can"
    yield from (f"{where}: {option!r} stands twice in dynamic" for option in _twice(list(job.dynamic)))
    given = {"matrix": job.matrix is not None, "environment": job.environment is not None, "env": bool(job.env)}
    yield from (
        f"{where} has a value for {name}, and says that it is dynamic" for name in job.dynamic if given.get(name)
    )


def _parallel_problems(job: LockJob, where: str) -> Iterator[str]:
    """Groups lie within the job's own steps, one after the other."""
    end = 0
    for group in sorted(job.parallel, key=lambda one: one.first):
        subject = f"{where}: parallel group {group.name!r}"
        inside = range(max(group.first, 0), min(group.first + group.size, len(job.steps)))
        if group.first < 0 or group.size < 1 or group.first + group.size > len(job.steps):
            yield f"{subject} has steps {group.first} to {group.first + group.size - 1} of {len(job.steps)}"
        elif any(job.steps[index].kind is not StepKind.STEP for index in inside):
            yield f"{subject} has something else than steps in it"
        if group.first < end:
            yield f"{subject} overlaps another one"
        if group.max_parallel is not None and group.max_parallel < 1:
            yield f"{subject} has max_parallel {group.max_parallel}; it is at least 1"
        end = max(end, group.first + group.size)
    yield from (f"{where} has two parallel groups called {n!r}" for n in _twice([one.name for one in job.parallel]))


_ORDER = list(StepKind)
"""In which the entries of a job stand; the workflow's hooks after the job's own."""


def _steps_order(job: LockJob) -> Iterator[str]:
    places = [(step.of_workflow, _ORDER.index(step.kind)) for step in job.steps]
    if places != sorted(places):
        yield "has steps in another order than kici compile gives them"
    if any(step.kind is StepKind.EVALUATE for step in job.steps):
        yield "has a step of kind evaluate, which only the orchestrator makes"


def _step_problems(step: LockStep, where: str) -> Iterator[str]:
    if step.of_workflow and step.kind not in HOOKS:
        yield f"{where} is no hook, and belongs to the workflow"
    if step.kind is StepKind.INIT and step.command is None:
        yield f"{where} has no command"
    if step.kind in (StepKind.CACHE_RESTORE, StepKind.CACHE_SAVE) and not step.caches:
        yield f"{where} has no cache"
    for template in step.env.values():
        yield from _refusal(partial(templates.check, template), where)
    for cache in step.caches:
        for template in (cache.key, *cache.restore):
            yield from _refusal(partial(templates.check_cache_key, template), where)
        yield from (f"{where}: cache path {path!r} leaves the checkout" for path in cache.paths if _leaves(path))
    yield from _rules_problems(step.rules, where)
    yield from _hooks_problems(step.hooks, ("on_cancel", "cleanup"), where)


def _checkout_problems(checkout: bool | LockCheckout, where: str) -> Iterator[str]:
    if isinstance(checkout, bool):
        return
    if checkout.depth < 0:
        yield f"{where}: checkout has depth {checkout.depth}; it is at least 0"
    for directory in checkout.sparse:
        if _leaves(directory) or not directory.isprintable() or any(sign in directory for sign in '*?[]"\\'):
            yield f"{where}: checkout: {directory!r} is no directory below the checkout"


def _leaves(path: str) -> bool:
    below = path.removeprefix("~/")
    return not below or below.startswith(("/", "~")) or ".." in below.split("/")


def _rules_problems(rules: Iterable[LockRule], where: str) -> Iterator[str]:
    for rule in rules:
        if rule.changed is not None and not rule.changed:
            yield f"{where}: rule {rule.label!r} names no file"
        for pattern in rule.changed or ():
            yield from _refusal(partial(patterns.check, pattern), f"{where}: rule {rule.label!r}")


def _hooks_problems(hooks: Mapping[str, int], known: Collection[str], where: str) -> Iterator[str]:
    for name, limit_ms in hooks.items():
        if name not in known:
            yield f"{where} has no hook {name!r}; it may have {', '.join(known)}"
        elif limit_ms <= 0:
            yield f"{where}: hook {name} has a timeout that is not positive"


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
