"""From the objects that authors define to the structs of the lock file. Runs where the objects are: in the child."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kici.compiler.diagnostics import Diagnostic
from kici.engine import lockfile as lock
from kici.sdk import outputs, triggers
from kici.sdk.concurrency import Concurrency
from kici.sdk.errors import DefinitionError
from kici.sdk.jobs import Job
from kici.sdk.problems import Location
from kici.sdk.steps import Retry, Step
from kici.sdk.workflows import Workflow

_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


class Lowering:
    """Turns one workflow into its lock entry. `problems` gathers what is wrong with it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.problems: list[Diagnostic] = []

    def workflow(self, workflow: Workflow, *, export: str, module: str) -> lock.LockWorkflow:
        """`module` is the path below `.kici/`. The content hash is filled in later."""
        self._check_jobs(workflow)
        return lock.LockWorkflow(
            name=workflow.name,
            source=lock.SourceLocation(f".kici/{module}", workflow.location.line),
            export=export,
            content_hash="",
            triggers=tuple(found for trigger in workflow.on for found in self._triggers(workflow, trigger)),
            jobs=tuple(self._job(job) for job in workflow.jobs),
            description=workflow.description,
            env=workflow.env,
            concurrency=_concurrency(workflow.concurrency),
            timeout_ms=workflow.timeout_ms,
        )

    def note(self, location: Location, subject: str, message: str) -> None:
        found = Diagnostic(self.relative(location.file), location.line, subject, message)
        if found not in self.problems:
            self.problems.append(found)

    def relative(self, file: str) -> str:
        return os.path.relpath(file, self._root).replace(os.sep, "/") if os.path.isabs(file) else file

    # ── jobs and steps ────────────────────────────────────────────────────────────────────────────────────────────

    def _check_jobs(self, workflow: Workflow) -> None:
        first: dict[str, Job[Any]] = {}
        for job in workflow.jobs:
            if job.name in first:
                line = first[job.name].location.line
                self.note(job.location, f"job {job.name!r}", f"another job has this name (line {line}): rename one")
            first.setdefault(job.name, job)
        for job in workflow.jobs:
            subject = f"job {job.name!r}"
            if not job.steps:
                self.note(job.location, subject, "it has no steps: write at least one command or function")
            names = [step.name for step in job.steps]
            for name in sorted({name for name in names if names.count(name) > 1}):
                self.note(job.location, subject, f"two of its steps are called {name!r}: rename one")
            for need in job.needs:
                self._check_need(job, need.job, first)

    def _check_need(self, job: Job[Any], needed: Job[Any] | str, listed: dict[str, Job[Any]]) -> None:
        subject = f"job {job.name!r}"
        if isinstance(needed, str):
            if needed not in listed:
                near = difflib.get_close_matches(needed, listed, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(listed))}"
                self.note(job.location, subject, f"it needs {needed!r}, which is no job of this workflow; {hint}")
        elif needed.name not in listed:
            self.note(
                job.location,
                subject,
                f"it needs {needed.name!r}, which is not among the workflow's jobs: add it to jobs=[…]",
            )
        elif listed[needed.name] is not needed:
            self.note(
                job.location, subject, f"it needs another job {needed.name!r} than the one in jobs=[…]: rename one"
            )

    def _job(self, job: Job[Any]) -> lock.LockJob:
        subject = f"job {job.name!r}"
        return lock.LockJob(
            name=job.name,
            steps=tuple(self._step(job, step) for step in job.steps),
            runs_on=self._patterns(job.location, subject, job.runs_on.required),
            exclude_labels=self._patterns(job.location, subject, job.runs_on.excluded),
            needs=tuple(lock.LockNeed(need.name, need.run_on) for need in job.needs),
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
            description=job.description,
            location=self._location(job.location),
        )

    def _step(self, job: Job[Any], step: Step[Any]) -> lock.LockStep:
        schema = None
        if step.fn is not None:
            try:
                schema = outputs.schema(outputs.return_type(step.fn))
            except DefinitionError as error:
                self.note(step.location, f"step {step.name!r}", str(error))
        return lock.LockStep(
            name=step.name,
            command=step.command,
            timeout_ms=step.timeout_ms,
            retry=_retry(step.retry),
            continue_on_error=step.continue_on_error,
            outputs=schema,
            location=self._location(step.location),
        )

    def _location(self, location: Location) -> lock.SourceLocation | None:
        """None for what is written outside the repository, in an installed package: its path is this machine's."""
        relative = self.relative(location.file)
        if relative.startswith("../") or os.path.isabs(relative) or not relative.startswith(".kici/"):
            return None
        return lock.SourceLocation(relative, location.line)

    # ── triggers and patterns ─────────────────────────────────────────────────────────────────────────────────────

    def _triggers(self, workflow: Workflow, trigger: triggers.Trigger) -> Iterator[lock.Trigger]:
        def patterns(given: Iterable[Any]) -> tuple[lock.Pattern, ...]:
            return self._patterns(workflow.location, f"workflow {workflow.name!r}", given)

        match trigger:
            case triggers.Push():
                if trigger.branches is not None:
                    yield lock.PushTrigger(patterns(trigger.branches), trigger.paths)
                if trigger.tags is not None:
                    yield lock.TagTrigger(patterns(trigger.tags))
            case triggers.Tag():
                yield lock.TagTrigger(patterns(trigger.patterns))
            case triggers.Pr():
                yield lock.PrTrigger(trigger.events, patterns(trigger.target), patterns(trigger.source), trigger.paths)
            case triggers.Dispatch():
                yield lock.DispatchTrigger(trigger.types)
            case triggers.GenericWebhook():
                yield lock.GenericWebhookTrigger(trigger.source, trigger.events)
            case triggers.Manual():
                yield lock.ManualTrigger()
            case _:
                self.note(workflow.location, f"workflow {workflow.name!r}", f"{trigger!r} is no trigger of kici's")

    def _patterns(self, location: Location, subject: str, given: Iterable[Any]) -> tuple[lock.Pattern, ...]:
        def refuse(message: str) -> None:
            self.note(location, subject, message)

        return tuple(pattern if isinstance(pattern, str) else _regex(pattern, refuse) for pattern in given)


def _regex(pattern: re.Pattern[str], refuse: Callable[[str], None]) -> lock.Regex:
    flags = pattern.flags & ~re.UNICODE
    prefix = ""
    for flag, letter in _FLAGS:
        if flags & flag:
            prefix += letter
            flags &= ~flag
    if flags:
        refuse(f"the regular expression {pattern.pattern!r} has flags that RE2 lacks: only I, M and S can be used")
    return lock.Regex(f"(?{prefix}){pattern.pattern}" if prefix else pattern.pattern)


def _retry(retry: Retry | None) -> lock.Retry | None:
    if retry is None:
        return None
    return lock.Retry(retry.attempts, retry.delay_ms, retry.backoff, retry.max_delay_ms)


def _concurrency(concurrency: Concurrency | None) -> lock.LockConcurrency | None:
    if concurrency is None:
        return None
    return lock.LockConcurrency(
        concurrency.group, concurrency.cancel_in_progress, concurrency.max, str(concurrency.pending)
    )
