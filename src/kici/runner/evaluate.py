"""Jobs that the lock file does not have: the one that asks a workflow's functions, and those that generators make.

The agent that runs a generated job has the lock file's `.kici/` and the job's definition, but no function of its steps:
it lets the generator make its jobs once more, with the same facts, and takes the one of that name.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from kici.engine import evaluation
from kici.errors import KiciError
from kici.runner.capture import Capture, step_index
from kici.runner.context import JobState, StepContext
from kici.runner.link import Link
from kici.runner.processes import children, descendants, end_descendants, reap
from kici.runner.results import Results
from kici.runner.shell import Activity
from kici.sdk.generators import Generator
from kici.sdk.jobs import Job
from kici.sdk.labels import Labels
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow
from kici.wire.runner import Start

if TYPE_CHECKING:
    from kici.sdk.context import Ctx


class Dropped(KiciError):
    """The generator does not make the job any more."""

    code = "drift_dropped"
    status = 422


class Differs(KiciError):
    """The generator makes another job of that name now."""

    code = "workflow_mismatch"
    status = 422


def question(workflow: Workflow, start: Start) -> Job[Any] | None:
    """The job whose one step asks; None if the module has nothing of that name."""
    name = evaluation.target(start.job)
    from kici.runner import ask  # late: 15 ms that other jobs do not need

    asked = _generator(workflow, name) or next((job for job in workflow.jobs if job.name == name and job.dynamic), None)
    if asked is None:
        return None

    async def evaluate(ctx: Ctx) -> str:
        if isinstance(asked, Generator):
            made = await ask.generated(workflow, asked, ctx, ask.locator(start.kici_dir))
            return evaluation.pack(evaluation.Evaluated(jobs=made))
        return evaluation.pack(evaluation.Evaluated(await ask.values_of(asked, ctx)))

    step: Step[Any] = Step(name=evaluation.STEP, location=asked.location, fn=evaluate)
    return Job(name=start.job.name, location=asked.location, steps=(step,), runs_on=asked.runs_on, needs=asked.needs)


def stand_in(workflow: Workflow, start: Start) -> Job[Any] | None:
    """Of a generated job, until `made_again` has found it: it may read what its generator may; None if the module has
    no such generator."""
    generator = _generator(workflow, start.context.generated_by)
    if generator is None:
        return None
    return Job(
        name=start.job.name, location=generator.location, steps=(), runs_on=Labels(("?",)), needs=generator.needs
    )


async def made_again(
    workflow: Workflow, start: Start, state: JobState, link: Link, capture: Capture
) -> tuple[Workflow, Job[Any]]:
    """The generated job, and the workflow with all that its generator makes. What the generator logs goes to the first
    step.

    Raises `Dropped`, `Differs`, and what the generator raises.
    """
    from kici.lowering.jobs import lowered_job
    from kici.runner import ask

    generator = _generator(workflow, start.context.generated_by)
    assert generator
    activity = Activity(0, link, capture)
    token = step_index.set(0)
    try:
        jobs = await _until_cancelled(generator, state, activity)
    finally:
        if descendants(os.getpid()):
            await end_descendants(os.getpid(), grace_s=0.2)
        reap(children(os.getpid()))
        await activity.close()
        step_index.reset(token)
    job = next((one for one in jobs if one.name == start.job.name), None)
    if job is None:
        raise Dropped(
            f"generator {generator.name!r} does not make job {start.job.name!r} any more: let it depend on nothing but"
            " ctx and the checkout"
        )
    if ask.shape(lowered_job(job, workflow, ask.locator(start.kici_dir))) != ask.shape(start.job):
        raise Differs(
            f"generator {generator.name!r} makes job {job.name!r} with other steps than before: let it depend on"
            " nothing but ctx and the checkout"
        )
    return replace(workflow, jobs=(*workflow.jobs, *jobs)), job


def results(workflow: Workflow, job: Job[Any], start: Start) -> Results:
    return Results(workflow, job, start.context.needs, limit=evaluation.output_limit(start.job))


async def _until_cancelled(generator: Generator, state: JobState, activity: Activity) -> list[Job[Any]]:
    from kici.runner import ask

    ctx = cast("Ctx", StepContext(state, activity, state.root, "bash"))
    work = asyncio.ensure_future(ask.jobs_of(generator, ctx))
    cancelled = asyncio.ensure_future(_wait(state))
    try:
        await asyncio.wait((work, cancelled), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            activity.stop(state.cancelled.reason, 0.2)
            raise asyncio.CancelledError
        return work.result()
    finally:
        work.cancel()
        cancelled.cancel()


async def _wait(state: JobState) -> None:
    await state.cancelled


def _generator(workflow: Workflow, name: str) -> Generator | None:
    return next((one for one in workflow.generators if one.name == name), None)
