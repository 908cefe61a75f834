"""How local runs ended: a tree for people, a document for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import to_builtins

from kici.cli import run_tree
from kici.cli.local.board import JobRecord, StepRecord
from kici.cli.local.run import LocalRun
from kici.engine.lifecycle import RunStatus
from kici.wire import api


def show(run: LocalRun, clean: Callable[[Any], Any]) -> None:
    """On standard output; with colours, and rich, only on a terminal."""
    status = run.board.status()
    summary = api.Run(
        run_id=run.run_id,
        workflow_name=run.workflow.name,
        status=status or "running",
        provider="local",
        repo_identifier=run.event.repo,
        ref=run.event.ref,
        sha=run.event.sha,
        duration_ms=_ms(run.started, run.ended),
        failure_reason=run.board.failure(),
    )
    jobs = [_job(job, clean) for job in run.board.jobs.values()]
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(run_tree.rich_tree(summary, jobs, datetime.now(UTC)))
    else:
        run_tree.print_tree(summary, jobs, datetime.now(UTC), print)
    for heading, markdown in run_tree.summaries(jobs):
        print(f"\n{heading}\n{markdown}")


def document(runs: Sequence[LocalRun], clean: Callable[[Any], Any]) -> dict[str, Any]:
    statuses = [run.board.status() for run in runs]
    found = {
        "workflows": [
            {
                "name": run.workflow.name,
                "status": status,
                "durationMs": _ms(run.started, run.ended),
                "jobs": [_job_document(job) for job in run.board.jobs.values()],
            }
            for run, status in zip(runs, statuses, strict=True)
        ],
        "summary": {
            "totalWorkflows": len(runs),
            "passed": statuses.count(RunStatus.SUCCESS),
            "failed": statuses.count(RunStatus.FAILED),
            "cancelled": statuses.count(RunStatus.CANCELLED),
            "totalDurationMs": sum(_ms(run.started, run.ended) for run in runs),
        },
    }
    return dict(clean(found))


def _job(job: JobRecord, clean: Callable[[Any], Any]) -> api.Job:
    return api.Job(
        job_id=job.name,
        job_name=job.name,
        base_job_name=job.planned.job.name,
        status=job.status,
        duration_ms=_ms(job.started, job.ended) if job.started else None,
        error_message=clean(job.error) or None,
        reason=job.told.reason or None if job.told else None,
        exit_code=job.told.exit_code if job.told else None,
        signal=job.told.signal or None if job.told else None,
        peak_memory_bytes=job.told.peak_memory_bytes if job.told else None,
        steps=[_step(index, step, clean) for index, step in enumerate(job.steps)],
    )


def _step(index: int, step: StepRecord, clean: Callable[[Any], Any]) -> api.Step:
    return api.Step(
        step_index=index,
        step_name=step.name,
        status=step.status,
        attempt=step.attempt,
        duration_ms=_ms(step.started, step.ended) if step.started else None,
        exit_code=step.exit_code,
        reason=step.reason or None,
        signal=step.signal or None,
        last_lines=clean(step.last_lines) or None,
        peak_memory_bytes=step.peak_memory_bytes,
        error_message=clean(step.error) or None,
        continue_on_error=step.continue_on_error,
        annotations=[
            api.Annotation(one.level, clean(one.message), clean(one.file), one.line) for one in step.annotations
        ],
        summary=clean(step.summary) or None,
    )


def _job_document(job: JobRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"name": job.name, "status": job.status, "durationMs": _ms(job.started, job.ended)}
    if job.planned.matrix:
        found["matrixValues"] = dict(job.planned.matrix)
    if job.error:
        found["error"] = job.error
    if job.outputs:
        found["outputs"] = job.outputs
    found["steps"] = [
        {"name": step.name, "status": step.status, "durationMs": _ms(step.started, step.ended), "attempt": step.attempt}
        | ({"exitCode": step.exit_code} if step.exit_code is not None else {})
        | ({"error": step.error} if step.error else {})
        | ({"reason": step.reason} if step.reason else {})
        | ({"signal": step.signal} if step.signal else {})
        | ({"lastLines": step.last_lines} if step.last_lines else {})
        | ({} if step.peak_memory_bytes is None else {"peakMemoryBytes": step.peak_memory_bytes})
        | ({"annotations": [to_builtins(one) for one in step.annotations]} if step.annotations else {})
        | ({"summary": step.summary} if step.summary else {})
        for step in job.steps
    ]
    return found


def _ms(started: float, ended: float) -> int:
    return max(0, round((ended - started) * 1000)) if started and ended else 0
