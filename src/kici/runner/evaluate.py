"""Jobs that the lock file does not have: the one that asks a workflow's functions, and those that generators make.

The agent that runs a generated job has the lock file's `.kici/` and the job's definition, but no function of its steps:
it lets the generator make its jobs once more, with the same facts, and takes the one of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kici.engine import evaluation
from kici.runner.results import Results
from kici.sdk.generators import Generator
from kici.sdk.jobs import Job
from kici.sdk.labels import Labels
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow
from kici.wire.runner import Start

if TYPE_CHECKING:
    from kici.sdk.context import Ctx


def question(workflow: Workflow, start: Start) -> Job[Any] | None:
    """The job whose one step asks; None if the module has nothing of that name."""
    name = evaluation.target(start.job)
    from kici.runner import ask  # late: 15 ms that other jobs do not need

    asked = generator_of(workflow, name) or next(
        (job for job in workflow.jobs if job.name == name and job.dynamic), None
    )
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
    """Of a generated job, until `generated.made_again` has found it: it may read what its generator may.

    None if the module has no such generator.
    """
    generator = generator_of(workflow, start.context.generated_by)
    if generator is None:
        return None
    return Job(
        name=start.job.name, location=generator.location, steps=(), runs_on=Labels(("?",)), needs=generator.needs
    )


def results(workflow: Workflow, job: Job[Any], start: Start) -> Results:
    return Results(workflow, job, start.context.needs, limit=evaluation.output_limit(start.job))


def generator_of(workflow: Workflow, name: str) -> Generator | None:
    return next((one for one in workflow.generators if one.name == name), None)
