"""What is written where a run or a job took longer than it may."""

from __future__ import annotations


def of_run(timeout_ms: int) -> str:
    return f"workflow_timeout: run exceeded the workflow timeout of {timeout_ms}ms"


def of_job(timeout_ms: int) -> str:
    return f"job_timeout: the job ran longer than its timeout of {timeout_ms / 1000:g} s"
