"""Finding a job's code: the workflow's module is imported, and what it defines is held against the lock file."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.evaluation import is_evaluation
from kici.engine.lockfile import HOOKS, LockJob, LockStep, StepKind
from kici.errors import KiciError
from kici.runner import evaluate
from kici.sdk import loading
from kici.sdk.jobs import Job
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow
from kici.wire.runner import Start


class WorkflowMismatch(KiciError):
    """The module is not what was locked."""

    code = "workflow_mismatch"
    status = 422


class Found(Struct, frozen=True):
    workflow: Workflow
    job: Job[Any]


def find(start: Start) -> Found:
    """Import the module and find the job in it.

    Raises `WorkflowMismatch`, `DefinitionError`, and whatever the module raises.
    """
    loading.prepare(start.kici_dir, start.packages)
    workflow = loading.find(loading.load(start.module), start.export)
    where = f".kici/{start.module}"
    if is_evaluation(start.job) or start.context.generated_by:
        asked = (evaluate.question if is_evaluation(start.job) else evaluate.stand_in)(workflow, start)
        if asked is None:
            raise _mismatch(f"{where} has nothing that makes {start.job.name!r}")
        return Found(workflow, asked)
    job = next((one for one in workflow.jobs if one.name == start.job.name), None)
    if job is None:
        raise _mismatch(f"{where} has no job {start.job.name!r}")
    check(workflow, job, start.job, where)
    return Found(workflow, job)


def check(workflow: Workflow, job: Job[Any], locked: LockJob, where: str) -> None:
    """Raise `WorkflowMismatch` if the job is not the one that was locked, as far as running it depends on that."""
    steps = [step for step in locked.steps if step.kind is StepKind.STEP]
    if len(job.steps) != len(steps):
        raise _mismatch(f"job {job.name!r} in {where} has {len(job.steps)} steps, the lock file says {len(steps)}")
    for number, (step, lock) in enumerate(zip(job.steps, steps, strict=True), 1):
        if difference := _difference(step, lock):
            raise _mismatch(f"step {number} of job {job.name!r} in {where} {difference}")
    for entry in locked.steps:
        if entry.kind in HOOKS and entry.kind not in (workflow.hooks if entry.of_workflow else job.hooks):
            raise _mismatch(f"job {job.name!r} in {where} has no {entry.name}")
    own = [(rule.label, rule.changed) for rule in job.rules]
    if own != [(rule.label, rule.changed) for rule in locked.rules]:
        raise _mismatch(f"job {job.name!r} in {where} has other rules than in the lock file")


def _difference(step: Step[Any], locked: LockStep) -> str:
    if step.name != locked.name:
        return f"is called {step.name!r}, the lock file says {locked.name!r}"
    if step.command != locked.command:
        return f"({step.name!r}) is another command than in the lock file"
    if len(step.rules) != len(locked.rules) or step.hooks.keys() != locked.hooks.keys():
        return f"({step.name!r}) has other rules or hooks than in the lock file"
    return ""


def _mismatch(what: str) -> WorkflowMismatch:
    return WorkflowMismatch(f"{what}: run `kici compile` and commit the lock file")
