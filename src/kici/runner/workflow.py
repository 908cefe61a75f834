"""Finding a job's code: the workflow's module is imported, and what it defines is held against the lock file."""

from __future__ import annotations

import os
import traceback
from typing import Any

from msgspec import Struct

import kici
from kici.engine.evaluation import is_evaluation
from kici.engine.lockfile import LockStep
from kici.errors import KiciError
from kici.runner import evaluate
from kici.sdk import loading
from kici.sdk.jobs import Job
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow
from kici.wire.runner import Start

_MAX_CHARS = 4_000
_NOT_THE_AUTHORS = tuple(os.path.dirname(os.path.abspath(str(one.__file__))) + os.sep for one in (kici, os))


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
    loading.prepare(start.kici_dir)
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
    if len(job.steps) != len(start.job.steps):
        raise _mismatch(
            f"job {job.name!r} in {where} has {len(job.steps)} steps, the lock file says {len(start.job.steps)}"
        )
    for number, (step, locked) in enumerate(zip(job.steps, start.job.steps, strict=True), 1):
        if difference := _difference(step, locked):
            raise _mismatch(f"step {number} of job {job.name!r} in {where} {difference}")
    return Found(workflow, job)


def _difference(step: Step[Any], locked: LockStep) -> str:
    if step.name != locked.name:
        return f"is called {step.name!r}, the lock file says {locked.name!r}"
    if step.command != locked.command:
        return f"({step.name!r}) is another command than in the lock file"
    return ""


def _mismatch(what: str) -> WorkflowMismatch:
    return WorkflowMismatch(f"{what}: run `kici compile` and commit the lock file")


def traceback_text(error: BaseException, kici_dir: str) -> str:
    """The traceback with the author's frames only, their paths as in the repository."""
    shown = traceback.TracebackException.from_exception(error, limit=None)
    _trim(shown, set())
    text = "".join(shown.format())
    return text.replace(f'File "{kici_dir.rstrip("/")}/', 'File ".kici/').rstrip("\n")


def _trim(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    kept = [frame for frame in shown.stack if _is_authors(frame.filename)]
    shown.stack[:] = kept
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _trim(other, seen)


def _is_authors(filename: str) -> bool:
    """Neither ours, nor the import system's, nor the standard library's (packages are)."""
    if filename.startswith("<frozen "):
        return False
    return not filename.startswith(_NOT_THE_AUTHORS) or "site-packages" in filename


def sentence(error: BaseException) -> str:
    """One line about an exception: `ValueError: …`; of ours the sentence alone."""
    text = " ".join(str(error)[:_MAX_CHARS].split())
    if isinstance(error, KiciError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
