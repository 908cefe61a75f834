"""What workflow authors import, through `kici`. Stands on msgspec alone and loads in milliseconds."""

from __future__ import annotations

from kici.sdk.concurrency import Concurrency, concurrency
from kici.sdk.context import Artifacts, Cancelled, Command, Ctx, Log, Pending, Result
from kici.sdk.durations import Duration
from kici.sdk.errors import (
    CommandFailed,
    CommandInvalid,
    DefinitionError,
    NoOutput,
    OutputInvalid,
    OutputsOfMany,
    SecretNotFound,
)
from kici.sdk.facts import Event, Git, Matrix, Needed, NeededInstance, Output
from kici.sdk.jobs import Job, JobOptions, Need, job
from kici.sdk.labels import Labels, labels
from kici.sdk.steps import Retry, Step, StepOptions, step
from kici.sdk.triggers import Trigger, dispatch, generic_webhook, manual, pr, push, tag
from kici.sdk.workflows import Workflow, WorkflowOptions, workflow

__all__ = [
    "Artifacts",
    "Cancelled",
    "Command",
    "CommandFailed",
    "CommandInvalid",
    "Concurrency",
    "Ctx",
    "DefinitionError",
    "Duration",
    "Event",
    "Git",
    "Job",
    "JobOptions",
    "Labels",
    "Log",
    "Matrix",
    "Need",
    "Needed",
    "NeededInstance",
    "NoOutput",
    "Output",
    "OutputInvalid",
    "OutputsOfMany",
    "Pending",
    "Result",
    "Retry",
    "SecretNotFound",
    "Step",
    "StepOptions",
    "Trigger",
    "Workflow",
    "WorkflowOptions",
    "concurrency",
    "dispatch",
    "generic_webhook",
    "job",
    "labels",
    "manual",
    "pr",
    "push",
    "step",
    "tag",
    "workflow",
]
