"""The numbers of the rules."""

from __future__ import annotations

from msgspec import Struct

from kici.orchestrator.settings import Settings


class Limits(Struct, frozen=True):
    """Seconds, unless the name says otherwise."""

    queue_timeout_s: float | None = 3_600.0
    """How long a job may wait for an agent; None = for ever."""
    ack_timeout_s: float = 10.0
    max_attempts: int = 5
    """Of any job, whatever its policy says."""
    recovery_s: float = 120.0
    """After so much silence an agent kills user code whose next attempt may start by itself."""
    overlap_margin_s: float = 5.0
    """Between that moment and the next attempt."""
    report_window_s: float = 900.0
    """For so long a silent agent may still report the end of what has no next attempt."""
    job_timeout_ms: int | None = 21_600_000
    """Of a job that has no timeout of its own; None = it may run for ever."""
    timeout_margin_s: float = 60.0
    """Beyond a job's timeout and grace period, for its agent to report that it stopped it."""
    cancel_margin_s: float = 60.0
    """On top of the job's grace period, for an agent to report the end of what it cancels."""
    force_margin_s: float = 15.0
    """The same where it kills at once."""

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            queue_timeout_s=settings.queue_timeout_ms / 1000 if settings.queue_timeout_ms else None,
            ack_timeout_s=settings.dispatch_ack_timeout_ms / 1000,
            max_attempts=settings.max_attempts,
            recovery_s=settings.recovery_s,
            report_window_s=settings.report_window_s,
            job_timeout_ms=settings.job_timeout_ms or None,
        )
