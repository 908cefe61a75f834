"""A planned job as it is stored: for a new run, and for what takes the place of a stand-in."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kici.engine.plan import PlannedJob
from kici.orchestrator.store.runs import NewJob, NewNeed


def new_job(planned: PlannedJob, ids: Mapping[str, str]) -> NewJob:
    """`ids`: name → id of the run's jobs, this one and all that it needs."""
    problem, category = _problem(planned)
    return NewJob(
        job_id=ids[planned.name],
        name=planned.name,
        base_name=planned.job.name,
        position=planned.position,
        definition=replace(planned.job, env=planned.env),
        matrix=planned.matrix,
        needs=tuple(NewNeed(ids[need.upstream], need.upstream, tuple(sorted(need.run_on))) for need in planned.needs),
        requirement=planned.requirement,
        concurrency_group=planned.concurrency_group,
        problem=problem,
        problem_category=category,
        skip=planned.skip,
        seed=planned.seed,
        generated_by=planned.generated_by,
        carried=planned.carried,
    )


def _problem(planned: PlannedJob) -> tuple[str, str]:
    """Why the job cannot be run, and the category of that. What is not there yet is said, never left out in silence."""
    if planned.problem:
        return planned.problem, "matrix_expansion"
    if planned.job.environment is not None and not planned.skip:
        return (
            f"job {planned.name!r} wants the environment {planned.environment!r}: environments and their secrets are"
            " not there yet in remote runs; use `kici run local`",
            "environment_rules",
        )
    return "", ""
