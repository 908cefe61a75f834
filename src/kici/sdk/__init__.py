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
    InputInvalid,
    NoOutput,
    OutputInvalid,
    OutputsOfMany,
    SecretNotFound,
    WaitTimeout,
)
from kici.sdk.facts import Event, Fanout, Git, Matrix, Needed, NeededInstance, Outcome, Output
from kici.sdk.forge_triggers import (
    comment,
    create,
    delete,
    fork,
    release,
    review,
    review_comment,
    star,
    status,
    watch,
    webhook,
    workflow_run,
)
from kici.sdk.generators import Generator, jobs
from kici.sdk.hooks import Hook, hook
from kici.sdk.internal_triggers import (
    generic_webhook,
    job_complete,
    kici_event,
    lifecycle,
    schedule,
    workflow_complete,
)
from kici.sdk.jobs import Job, JobOptions, Need, job
from kici.sdk.labels import Labels, labels
from kici.sdk.parallel import Group, parallel
from kici.sdk.rules import Rule, changed, rule, skip_if, skip_unless
from kici.sdk.setup import Setup, mise, setup, uv_sync
from kici.sdk.steps import Retry, Step, StepOptions, step
from kici.sdk.triggers import Trigger, dispatch, manual, pr, push, tag
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
    "InputInvalid",
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
    "comment",
    "concurrency",
    "create",
    "delete",
    "dispatch",
    "fork",
    "generic_webhook",
    "hook",
    "job",
    "job_complete",
    "jobs",
    "kici_event",
    "labels",
    "lifecycle",
    "manual",
    "mise",
    "parallel",
    "pr",
    "push",
    "release",
    "review",
    "review_comment",
    "rule",
    "schedule",
    "setup",
    "skip_if",
    "skip_unless",
    "star",
    "status",
    "step",
    "tag",
    "uv_sync",
    "watch",
    "webhook",
    "workflow",
    "workflow_complete",
    "workflow_run",
]
