"""What workflow authors import, through `kici`. Stands on msgspec alone and loads in milliseconds."""

from __future__ import annotations

from kici.sdk.caches import Cache, cache
from kici.sdk.concurrency import Concurrency, concurrency
from kici.sdk.context import AnnotationLevel, Artifacts, CacheUse, Cancelled, Command, Ctx, Log, Pending, Result
from kici.sdk.durations import Duration
from kici.sdk.errors import (
    CommandFailed,
    CommandInvalid,
    DefinitionError,
    NoOutput,
    OutputInvalid,
    OutputsOfMany,
    SecretNotFound,
    WaitTimeout,
)
from kici.sdk.facts import Event, Fanout, Git, Matrix, Needed, NeededInstance, Outcome, Output
from kici.sdk.generators import Generator, jobs
from kici.sdk.hooks import Hook, hook
from kici.sdk.jobs import Job, JobOptions, Need, job
from kici.sdk.labels import Labels, labels
from kici.sdk.parallel import Group, parallel
from kici.sdk.rules import Rule, changed, rule, skip_if, skip_unless
from kici.sdk.setup import Setup, mise, setup, uv_sync
from kici.sdk.steps import Retry, Step, StepOptions, step
from kici.sdk.triggers import Trigger, dispatch, generic_webhook, manual, pr, push, tag
from kici.sdk.workflows import Workflow, WorkflowOptions, workflow

__all__ = [
    "AnnotationLevel",
    "Artifacts",
    "Cache",
    "CacheUse",
    "Cancelled",
    "Command",
    "CommandFailed",
    "CommandInvalid",
    "Concurrency",
    "Ctx",
    "DefinitionError",
    "Duration",
    "Event",
    "Fanout",
    "Generator",
    "Git",
    "Group",
    "Hook",
    "Job",
    "JobOptions",
    "Labels",
    "Log",
    "Matrix",
    "Need",
    "Needed",
    "NeededInstance",
    "NoOutput",
    "Outcome",
    "Output",
    "OutputInvalid",
    "OutputsOfMany",
    "Pending",
    "Result",
    "Retry",
    "Rule",
    "SecretNotFound",
    "Setup",
    "Step",
    "StepOptions",
    "Trigger",
    "WaitTimeout",
    "Workflow",
    "WorkflowOptions",
    "cache",
    "changed",
    "concurrency",
    "dispatch",
    "generic_webhook",
    "hook",
    "job",
    "jobs",
    "labels",
    "manual",
    "mise",
    "parallel",
    "pr",
    "push",
    "rule",
    "setup",
    "skip_if",
    "skip_unless",
    "step",
    "tag",
    "uv_sync",
    "workflow",
]
