"""Tests of workflows, in pytest and without a plugin: what an event would run, and one step with a recorded shell."""

from __future__ import annotations

from kici.testing.context import Annotation, LogLine
from kici.testing.events import (
    dispatch_event,
    event,
    manual_event,
    pr_event,
    push_event,
    tag_event,
    webhook_event,
)
from kici.testing.fixtures import fixture
from kici.testing.planning import NotCompiled, Planned, PlannedJob, plan
from kici.testing.results import needed
from kici.testing.shell import Call, FakeShell, Reply, UnexpectedCommand
from kici.testing.steps import StepRun, run_step

__all__ = [
    "Annotation",
    "Call",
    "FakeShell",
    "LogLine",
    "NotCompiled",
    "Planned",
    "PlannedJob",
    "Reply",
    "StepRun",
    "UnexpectedCommand",
    "dispatch_event",
    "event",
    "fixture",
    "manual_event",
    "needed",
    "plan",
    "pr_event",
    "push_event",
    "run_step",
    "tag_event",
    "webhook_event",
]
