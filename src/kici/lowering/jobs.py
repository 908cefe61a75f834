"""A job as its author defined it → as the lock file has it. What cannot be lowered is refused and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

from kici.engine.lockfile import (
    LockAmount,
    LockCache,
    LockCheckout,
    LockConcurrency,
    LockGenerator,
    LockJob,
    LockNeed,
    LockParallel,
    LockResources,
    LockRule,
    LockSandbox,
    LockStep,
    SourceLocation,
    StepKind,
    SubmoduleLevels,
)
from kici.engine.lockfile import Retry as LockRetry
from kici.lowering.patterns import lowered_patterns
from kici.sdk.caches import Cache
from kici.sdk.checkouts import Checkout
from kici.sdk.concurrency import Concurrency
from kici.sdk.errors import DefinitionError
from kici.sdk.generators import Generator
from kici.sdk.hooks import AROUND_STEPS, AT_THE_END, Hook
from kici.sdk.jobs import Job, Need
from kici.sdk.outputs import return_type, schema
from kici.sdk.problems import Location, refuse
from kici.sdk.resources import Demand
from kici.sdk.rules import Rule
from kici.sdk.setup import Setup
from kici.sdk.steps import Retry, Step
from kici.sdk.workflows import Workflow

Locate = Callable[[Location], SourceLocation | None]
"""A place as the lock file names it; None for one outside `.kici/`."""


def lowered_job(job: Job[Any], workflow: Workflow, locate: Locate) -> LockJob:
    subject = f"job {job.name!r}"
    before = [*_cache_steps(StepKind.CACHE_RESTORE, job), *_init_steps(job.init, locate)]
    return LockJob(
        name=job.name,
        steps=(
            *before,
            *(_step(step, job, locate) for step in job.steps),
            *_cache_steps(StepKind.CACHE_SAVE, job),
            *_hook_steps(job.hooks, subject, locate, of_workflow=False),
            *_hook_steps(workflow.hooks, f"workflow {workflow.name!r}", locate, of_workflow=True),
        ),
        runs_on=lowered_patterns(job.runs_on.required, subject, job.location),
        exclude_labels=lowered_patterns(job.runs_on.excluded, subject, job.location),
        needs=lowered_needs(job.needs),
        matrix=job.matrix,
        include=job.include,
        exclude=job.exclude,
        environment=job.environment,
        env=job.env,
        concurrency=lowered_concurrency(job.concurrency),
        checkout=_checkout(job.checkout),
        timeout_ms=job.timeout_ms,
        grace_period_ms=job.grace_period_ms,
        retry_on_infra=_retry(job.retry_on_infra),
        priority=job.priority,
        resources=_resources(job.resources),
        sandbox=None if job.sandbox is None else LockSandbox(job.sandbox),
        max_parallel=job.max_parallel,
        fail_fast=job.fail_fast,
        parallel=tuple(
            LockParallel(one.name, len(before) + one.first, one.size, one.fail_fast, one.max_parallel)
            for one in job.parallel
        ),
        rules=lowered_rules(job.rules, subject, job.location),
        hooks=_limits(job.hooks, AROUND_STEPS, subject),
        dynamic=tuple(sorted(_checked_dynamic(job, subject))),
        description=job.description,
        location=locate(job.location),
    )


def lowered_generator(generator: Generator, locate: Locate) -> LockGenerator:
    subject = f"jobs {generator.name!r}"
    _check_takes_ctx(generator.fn, subject, generator.location)
    return LockGenerator(
        name=generator.name,
        runs_on=lowered_patterns(generator.runs_on.required, subject, generator.location),
        exclude_labels=lowered_patterns(generator.runs_on.excluded, subject, generator.location),
        needs=lowered_needs(generator.needs),
        timeout_ms=generator.timeout_ms,
        location=locate(generator.location),
    )


def lowered_needs(needs: Iterable[Need]) -> tuple[LockNeed, ...]:
    return tuple(LockNeed(need.name, need.run_on) for need in needs)


def lowered_rules(rules: Iterable[Rule], subject: str, where: Location) -> tuple[LockRule, ...]:
    found = []
    for rule in rules:
        if rule.fn is not None:
            _check_takes_ctx(rule.fn, f"{subject}: rule {rule.label!r}", where)
        found.append(LockRule(rule.label, rule.changed, rule.negated))
    return tuple(found)


def lowered_concurrency(concurrency: Concurrency | None) -> LockConcurrency | None:
    if concurrency is None:
        return None
    return LockConcurrency(concurrency.group, concurrency.cancel_in_progress, concurrency.max, concurrency.pending)


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _step(step: Step[Any], job: Job[Any], locate: Locate) -> LockStep:
    subject = f"job {job.name!r}" if job.is_function else f"step {step.name!r}"
    return LockStep(
        name=step.name,
        command=step.command,
        env=step.env,
        rules=lowered_rules(step.rules, subject, step.location),
        hooks=_limits(step.hooks, step.hooks, subject),
        caches=_caches(step.caches),
        timeout_ms=step.timeout_ms,
        retry=_retry(step.retry),
        continue_on_error=step.continue_on_error,
        outputs=_outputs(step, subject),
        working_directory=step.working_directory,
        shell=step.shell,
        location=locate(step.location),
    )


def _cache_steps(kind: StepKind, job: Job[Any]) -> Iterator[LockStep]:
    if job.caches:
        verb = "restore" if kind is StepKind.CACHE_RESTORE else "save"
        yield LockStep(name=f"cache: {verb}", kind=kind, caches=_caches(job.caches))


def _init_steps(init: Sequence[Setup], locate: Locate) -> Iterator[LockStep]:
    counts: dict[str, int] = {}
    for one in init:
        counts[one.name] = counts.get(one.name, 0) + 1
        number = f" #{counts[one.name]}" if counts[one.name] > 1 else ""
        yield LockStep(
            name=f"init: {one.name}{number}",
            kind=StepKind.INIT,
            command=one.command,
            env=one.env,
            caches=_caches(one.caches),
            timeout_ms=one.timeout_ms,
            shell=one.shell,
            location=locate(one.location),
        )


def _hook_steps(hooks: dict[str, Hook], subject: str, locate: Locate, *, of_workflow: bool) -> Iterator[LockStep]:
    for name in AT_THE_END:
        hook = hooks.get(name)
        if hook is None:
            continue
        _check_hook(hook, f"{subject}: {name}")
        yield LockStep(
            name=f"workflow hook: {name}" if of_workflow else f"hook: {name}",
            kind=StepKind(name),
            of_workflow=of_workflow,
            command=hook.command,
            timeout_ms=hook.timeout_ms,
            location=locate(hook.location),
        )


def _limits(hooks: dict[str, Hook], names: Iterable[str], subject: str) -> dict[str, int]:
    found = {}
    for name in names:
        if hook := hooks.get(name):
            _check_hook(hook, f"{subject}: {name}")
            found[name] = hook.timeout_ms
    return found


def _caches(caches: Iterable[Cache]) -> tuple[LockCache, ...]:
    return tuple(LockCache(one.key, one.paths, one.restore) for one in caches)


def _checkout(given: bool | Checkout) -> bool | LockCheckout:
    if isinstance(given, bool):
        return given
    levels = {False: SubmoduleLevels.NONE, True: SubmoduleLevels.FIRST, "recursive": SubmoduleLevels.ALL}
    return LockCheckout(given.depth, levels[given.submodules], given.lfs, tuple(given.sparse), given.tags)


def _resources(demand: Demand | None) -> LockResources | None:
    if demand is None:
        return None
    return LockResources(*(LockAmount(side.cpu_millis, side.memory_bytes) for side in (demand.requests, demand.limits)))


def _retry(retry: Retry | None) -> LockRetry | None:
    if retry is None:
        return None
    return LockRetry(retry.attempts, retry.delay_ms, retry.backoff, retry.max_delay_ms)


def _outputs(step: Step[Any], subject: str) -> dict[str, Any] | None:
    if step.fn is None:
        return None
    _check_takes_ctx(step.fn, subject, step.location)
    try:
        annotation = return_type(step.fn)
        return None if annotation is Any else schema(annotation)
    except DefinitionError as error:
        refuse(subject, str(error), step.location)
        return None


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked_dynamic(job: Job[Any], subject: str) -> Iterator[str]:
    for name, function in job.dynamic.items():
        _check_takes_ctx(function, f"{subject}: {name}", job.location)
        yield name


def _check_hook(hook: Hook, subject: str) -> None:
    if hook.fn is not None:
        _check_takes_ctx(hook.fn, subject, hook.location)


def _check_takes_ctx(function: Any, subject: str, location: Location) -> None:
    if _plainly_takes_one(function):
        return
    import inspect  # ten milliseconds, which most compiles do without

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        refuse(subject, "its function takes one argument, ctx: write `async def name(ctx: Ctx) -> …`", location)
    except ValueError:  # written in C: nobody can tell
        return


def _plainly_takes_one(function: Any) -> bool:
    """A function of Python's own with one parameter; False also for what only `inspect` could tell."""
    code = getattr(function, "__code__", None)
    return (
        type(function) is FunctionType
        and not hasattr(function, "__wrapped__")
        and code is not None
        and code.co_argcount == 1
        and code.co_kwonlyargcount == 0
    )
