"""The combinations of one job: how many may be under way at once, and when the others are halted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kici.engine.lifecycle import TERMINAL_JOB, JobStatus

FINE = frozenset({JobStatus.SUCCESS, JobStatus.SKIPPED})
"""Endings that halt nobody."""


def places(others: Iterable[JobStatus], max_parallel: int | None) -> int | None:
    """How many more of a job's combinations may be put into the queue now; None = all.

    `others` are the states of its combinations, without those that wait for their turn. What is queued counts: an agent
    may take it at any moment.
    """
    if max_parallel is None:
        return None
    return max(0, max_parallel - sum(status not in TERMINAL_JOB for status in others))


def halted_by(endings: Mapping[str, JobStatus]) -> str | None:
    """Why the others are halted, if the job has `fail_fast` and one of these combinations did not succeed.

    `endings` holds the combinations that have ended, in the order of the workflow.
    """
    for name, status in endings.items():
        if status not in FINE:
            ending = "failed" if status is JobStatus.FAILED else f"ended as {status}"
            return f"fan-out halted by fail_fast: {name} {ending}"
    return None
