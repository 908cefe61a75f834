"""How a job is to end."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.lifecycle import JobEvent
from kici.orchestrator.store.jobs import Job


class JobFacts(Struct, frozen=True):
    """What its agent tells beside the sentence: of the step that made it fail."""

    reason: str = ""
    exit_code: int | None = None
    signal: str = ""
    peak_memory_bytes: int | None = None


class End(Struct, frozen=True):
    job_id: str
    event: JobEvent
    error: str = ""
    outputs: dict[str, Any] | None = None
    init_failure: dict[str, Any] | None = None
    reported: bool = False
    """By the agent that ran it."""
    facts: JobFacts = JobFacts()


def of_stopped(job: Job, event: JobEvent, why: str) -> End:
    """The end of a job that was being stopped and whose agent does not tell it: by `event`, but what was stopped for
    taking too long has failed."""
    if job.timed_out:
        return End(job.job_id, JobEvent.FAIL, error=f"{job.timed_out}; {why}")
    return End(job.job_id, event, error=why)
