"""Definitions → structs of the lock file. What cannot be lowered is refused and the rest goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kici.engine.lockfile import (
    DispatchTrigger,
    GenericWebhookTrigger,
    LockConcurrency,
    LockJob,
    LockNeed,
    LockStep,
    LockWorkflow,
    ManualTrigger,
    Pattern,
    PrTrigger,
    PushTrigger,
    Regex,
    SourceLocation,
    TagTrigger,
    Trigger,
)
from kici.engine.lockfile import Retry as LockRetry
from kici.sdk import triggers as sdk_triggers
from kici.sdk.concurrency import Concurrency
from kici.sdk.errors import DefinitionError
from kici.sdk.jobs import Job
from kici.sdk.outputs import return_type, schema
from kici.sdk.problems import Location, refuse
from kici.sdk.steps import Retry, Step
from kici.sdk.values import Pattern as SdkPattern
from kici.sdk.values import nearest
from kici.sdk.workflows import Workflow

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


class Lowering:
    """For one repository. Locations outside `.kici/` (an installed package) are left out: they differ by machine."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._files: dict[str, str] = {}
        self._kici = os.path.join(self._root, ".kici") + os.sep

    def workflow(self, workflow: Workflow, path: str, export: str) -> LockWorkflow:
        """`path` is the module's, below `.kici/`."""
        own = self._location(workflow.location)
        file = f".kici/{path}"
        _check_needs(workflow)
        return LockWorkflow(
            name=workflow.name,
            source=own if own and own.file == file else SourceLocation(file),
            export=export,
            content_hash="",
            triggers=tuple(one for trigger in workflow.on for one in _trigger(trigger, workflow)),
            jobs=tuple(self._job(job) for job in workflow.jobs),
            description=workflow.description,
            env=workflow.env,
            concurrency=_concurrency(workflow.concurrency),
            timeout_ms=workflow.timeout_ms,
        )

    def _job(self, job: Job[Any]) -> LockJob:
        return LockJob(
            name=job.name,
            steps=tuple(self._step(step, job) for step in job.steps),
            runs_on=_patterns(job.runs_on.required, f"job {job.name!r}", job.location),
            exclude_labels=_patterns(job.runs_on.excluded, f"job {job.name!r}", job.location),
            needs=tuple(LockNeed(need.name, need.run_on) for need in job.needs),
            matrix=job.matrix,
            include=job.include,
            exclude=job.exclude,
            environment=job.environment,
            env=job.env,
            concurrency=_concurrency(job.concurrency),
            checkout=job.checkout,
            timeout_ms=job.timeout_ms,
            grace_period_ms=job.grace_period_ms,
            retry_on_infra=_retry(job.retry_on_infra),
            priority=job.priority,
            max_parallel=job.max_parallel,
            fail_fast=job.fail_fast,
            description=job.description,
            location=self._location(job.location),
        )

    def _step(self, step: Step[Any], job: Job[Any]) -> LockStep:
        return LockStep(
            name=step.name,
            command=step.command,
            timeout_ms=step.timeout_ms,
            retry=_retry(step.retry),
            continue_on_error=step.continue_on_error,
            outputs=_outputs(step, job),
            working_directory=step.working_directory,
            shell=step.shell,
            location=self._location(step.location),
        )

    def _location(self, location: Location) -> SourceLocation | None:
        if location.file not in self._files:
            file = os.path.realpath(location.file)
            below = file.startswith(self._kici)
            self._files[location.file] = os.path.relpath(file, self._root).replace(os.sep, "/") if below else ""
        return SourceLocation(self._files[location.file], location.line) if self._files[location.file] else None


def _outputs(step: Step[Any], job: Job[Any]) -> dict[str, Any] | None:
    if step.fn is None:
        return None
    subject = f"job {job.name!r}" if job.is_function else f"step {step.name!r}"
    if not _takes_ctx(step.fn):
        refuse(subject, "its function takes one argument, ctx: write `async def name(ctx: Ctx) -> …`", step.location)
    try:
        annotation = return_type(step.fn)
        return None if annotation is Any else schema(annotation)
    except DefinitionError as error:
        refuse(subject, str(error), step.location)
        return None


def _takes_ctx(function: Any) -> bool:
    import inspect

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C: nobody can tell
        return True
    return True


def _check_needs(workflow: Workflow) -> None:
    """Every job that is reached by its object must be listed, and be the listed one of its name."""
    listed = {job.name: job for job in workflow.jobs}
    reached = list(workflow.jobs)
    seen = {id(job) for job in reached}
    for job in reached:
        subject = f"workflow {workflow.name!r}: job {job.name!r}"
        for need in job.needs:
            if need.name not in listed:
                how = (
                    "add it to" if isinstance(need.job, Job) else f"write the job itself{nearest(need.name, listed)} in"
                )
                refuse(subject, f"it needs {need.name!r}, which is not listed: {how} jobs=[…]", job.location)
            elif isinstance(need.job, Job) and need.job is not listed[need.name] and id(need.job) not in seen:
                refuse(subject, f"it needs another job called {need.name!r} than the listed one", job.location)
            if isinstance(need.job, Job) and id(need.job) not in seen:
                seen.add(id(need.job))
                reached.append(need.job)


def _trigger(trigger: sdk_triggers.Trigger, workflow: Workflow) -> Iterator[Trigger]:
    subject, where = f"workflow {workflow.name!r}", workflow.location
    match trigger:
        case sdk_triggers.Push(branches, tags, paths):
            if branches is not None:
                yield PushTrigger(_patterns(branches, subject, where), paths)
            if tags is not None:
                yield TagTrigger(_patterns(tags, subject, where))
        case sdk_triggers.Tag(patterns):
            yield TagTrigger(_patterns(patterns, subject, where))
        case sdk_triggers.Pr(events, target, source, paths):
            yield PrTrigger(events, _patterns(target, subject, where), _patterns(source, subject, where), paths)
        case sdk_triggers.Dispatch(types):
            yield DispatchTrigger(types)
        case sdk_triggers.GenericWebhook(source, events):
            yield GenericWebhookTrigger(source, events)
        case sdk_triggers.Manual():
            yield ManualTrigger()
        case _:
            refuse(subject, f"on: {trigger!r} is no trigger: write push(…), pr(…), tag(…) or manual()", where)


def _patterns(patterns: Iterable[SdkPattern], subject: str, where: Location) -> tuple[Pattern, ...]:
    return tuple(one if isinstance(one, str) else _regex(one, subject, where) for one in patterns)


def _regex(pattern: re.Pattern[str], subject: str, where: Location) -> Regex:
    if pattern.flags & re.VERBOSE:
        refuse(subject, f"the regular expression {pattern.pattern!r} uses re.VERBOSE, which RE2 has not", where)
    flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    written = pattern.pattern
    return Regex(f"(?{flags}){written}" if flags and not written.startswith(f"(?{flags})") else written)


def _concurrency(concurrency: Concurrency | None) -> LockConcurrency | None:
    if concurrency is None:
        return None
    return LockConcurrency(concurrency.group, concurrency.cancel_in_progress, concurrency.max, concurrency.pending)


def _retry(retry: Retry | None) -> LockRetry | None:
    if retry is None:
        return None
    return LockRetry(retry.attempts, retry.delay_ms, retry.backoff, retry.max_delay_ms)
