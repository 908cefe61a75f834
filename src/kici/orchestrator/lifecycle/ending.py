"""How a job is to end."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.lifecycle import JobEvent
from kici.orchestrator.store.jobs import Job


class End(Struct, frozen=True):
    job_id: str
    event: JobEvent
    error: str = ""
    outputs: dict[str, Any] | None = None
    init_failure: dict[str, Any] | None = None
    reported: bool = False
    """By the agent that ran it."""


def of_stopped(job: Job, event: JobEvent, why: str) -> End:
    """The end of a job that was being stopped and whose agent does not tell it: by `event`, but what was stopped for
    taking too long has failed."""
    if job.timed_out:
        return End(job.job_id, JobEvent.FAIL, error=f"{job.timed_out}; {why}")
    return End(job.job_id, event, error=why)
