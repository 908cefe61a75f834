"""What may become of a run, a job and a step."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobStatus(StrEnum):
    PENDING = "pending"
    """Waits for the jobs it needs."""
    QUEUED = "queued"
    """Has a row in the queue: waits for an agent, or was sent to one that has not yet accepted it."""
    RUNNING = "running"
    RECOVERING = "recovering"
    """Its agent is silent or gone; it is not known whether it still runs."""
    CANCELLING = "cancelling"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    TIMED_OUT_STALE = "timed_out_stale"
    """Expired in the queue: never sent to an agent."""
    INFRA_LOST = "infra_lost"
    """Its machine was lost and no attempt is left."""


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
