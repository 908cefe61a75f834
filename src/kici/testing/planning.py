"""What an event would make of a workflow: lowered by the compiler and planned by the engine, as everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from msgspec import Struct
from msgspec.structs import replace

from kici.compiler import check, outputs_use
from kici.compiler.lower import Lowering
from kici.engine import needs, triggers
from kici.engine import plan as engine_plan
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockWorkflow
from kici.engine.triggers import Decision
from kici.errors import KiciError
from kici.sdk.jobs import Job
from kici.sdk.workflows import Workflow


class NotCompiled(KiciError):
    """The workflow would not compile; the message has all that is wrong with it."""

    code = "not_compiled"


class PlannedJob(Struct, frozen=True):
    """One job that would run; of a matrix one combination."""

    name: str
    """With the matrix's values: `build (3.11)`."""
    job: str
    """As in the workflow: `build`."""
    matrix: dict[str, str]
    needs: tuple[str, ...]
    """Full names."""
    runs_on: tuple[str, ...]
    steps: tuple[str, ...]
    env: dict[str, str]
    environment: str
    concurrency: str
    """Name of its group, expanded; empty if it has none."""


class Planned(Struct, frozen=True):
    """`names`, `in` and `[…]` speak of the jobs that would run."""

    workflow: str
    decision: Decision
    """Whether the event starts the workflow at all, with every comparison that was made."""
    jobs: tuple[PlannedJob, ...]
    skipped: dict[str, str]
    """Full name → why it would not run. All jobs of a workflow that the event does not start."""
    failed: dict[str, str]
    """Full name → why it could not even be made."""
    problem: str = ""
    """Why the run as a whole could not be made."""
    concurrency: str = ""
    """Name of the run's group, expanded."""

    @property
    def matched(self) -> bool:
        return self.decision.matched

    @property
    def names(self) -> list[str]:
        return [job.name for job in self.jobs]

    def __contains__(self, job: object) -> bool:
        """By its full name, by its name in the workflow, or by the job itself."""
        wanted = job.name if isinstance(job, Job) else job
        return any(wanted in (one.name, one.job) for one in self.jobs)

    def __getitem__(self, name: str) -> PlannedJob:
        for job in self.jobs:
            if job.name == name:
                return job
        why = self.skipped.get(name) or self.failed.get(name)
        told = (
            f"job {name!r} would not run: {why}" if why else f"there is no job {name!r} among {', '.join(self.names)}"
        )
        raise KeyError(told)


def plan(workflow: Workflow, event: Event) -> Planned:
    """Which jobs the event would run, and why not the others. Raises `NotCompiled`."""
    if event.type is EventType.MANUAL and not event.workflow:
        event = replace(event, workflow=workflow.name)
    locked = lowered(workflow)
    decision = triggers.match(locked, event)
    planned = engine_plan.plan(locked, event)
    if not decision.matched:
        why = _why_not(decision)
        return Planned(locked.name, decision, (), {job.name: why for job in planned.jobs}, {}, planned.problem)
    failed = {job.name: job.problem for job in planned.jobs if job.problem}
    skipped = _skipped(planned.jobs, failed)
    return Planned(
        workflow=locked.name,
        decision=decision,
        jobs=tuple(_shown(job) for job in planned.jobs if job.name not in skipped and job.name not in failed),
        skipped=skipped,
        failed=failed,
        problem=planned.problem or planned.concurrency_problem,
        concurrency=planned.concurrency_group,
    )


def lowered(workflow: Workflow) -> LockWorkflow:
    """As the lock file would hold it, without the hash. Raises `NotCompiled`, `DefinitionError`."""
    file = Path(workflow.location.file)
    kici = next((directory for directory in file.parents if directory.name == ".kici"), file.parent)
    locked = Lowering(str(kici.parent)).workflow(workflow, PurePath(file).relative_to(kici).as_posix(), workflow.name)
    outputs_use.check(workflow)
    problems = list(check.problems((locked,)))
    if problems:
        raise NotCompiled("\n".join(map(str, problems)))
    return locked


def _skipped(jobs: tuple[engine_plan.PlannedJob, ...], failed: dict[str, str]) -> dict[str, str]:
    """What the plan skips, and what can never start because of that."""
    found = dict(_by_plan(jobs))
    while True:
        endings = dict.fromkeys(found, "skipped") | dict.fromkeys(failed, "failed")
        more = {
            job.name: verdict.reason
            for job in jobs
            if job.name not in endings
            for verdict in [needs.decide([needs.Need(one.upstream, one.run_on) for one in job.needs], endings)]
            if isinstance(verdict, needs.Skip)
        }
        if not more:
            return {job.name: found[job.name] for job in jobs if job.name in found}
        found |= more


def _by_plan(jobs: tuple[engine_plan.PlannedJob, ...]) -> Iterator[tuple[str, str]]:
    for job in jobs:
        if job.skip:
            yield job.name, job.skip


def _shown(job: engine_plan.PlannedJob) -> PlannedJob:
    return PlannedJob(
        name=job.name,
        job=job.job.name,
        matrix=job.matrix,
        needs=tuple(dict.fromkeys(need.upstream for need in job.needs)),
        runs_on=job.requirement.labels,
        steps=tuple(step.name for step in job.job.steps),
        env=job.env,
        environment=job.environment,
        concurrency=job.concurrency_group,
    )


def _why_not(decision: Decision) -> str:
    failed = [check for check in decision.checks if not check.passed]
    said = [f"{one.check}: {one.value or '(nothing)'} is not {one.pattern or '(anything)'}" for one in failed]
    return f"{decision.summary}: {'; '.join(said)}" if said else decision.summary
