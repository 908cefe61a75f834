"""A job that a generator makes, on the agent that runs it: the lock file has no function of its steps, so the generator
makes its jobs once more, with the same facts, and the one of that name is taken."""

from __future__ import annotations

from msgspec.structs import replace

from kici.engine import evaluation, templates
from kici.errors import KiciError
from kici.runner.acts import Acts, Ended, How, What
from kici.runner.environment import Environment
from kici.runner.evaluate import generator_of
from kici.runner.workflow import Found
from kici.sdk.workflows import Workflow
from kici.wire.runner import Start


class Dropped(KiciError):
    """The generator does not make the job any more."""

    code = "drift_dropped"
    status = 422


class Differs(KiciError):
    """The generator makes another job of that name now."""

    code = "workflow_mismatch"
    status = 422


async def made_again(workflow: Workflow, start: Start, acts: Acts) -> Found | Ended:
    """The generated job, in the workflow with all that its generator makes. What the generator logs goes to the first
    step. Or how that ended: `exception` is `Dropped`, `Differs`, or what the generator has raised.
    """
    from kici.lowering.jobs import lowered_job
    from kici.runner import ask  # late: 15 ms that other jobs do not need

    generator = generator_of(workflow, start.context.generated_by)
    assert generator
    _as_when_asked(workflow, generator.name, start, acts.state.environment)
    how = How(generator.timeout_ms, subject=f"generator {generator.name!r}")
    ended = await acts.perform(0, What(lambda ctx: ask.jobs_of(generator, ctx), None), how)
    if ended.status != "success":
        said = ended.error if ended.status == "cancelled" else f"generator {generator.name!r} failed: {ended.error}"
        return replace(ended, error=said)
    jobs = ended.value
    job = next((one for one in jobs if one.name == start.job.name), None)
    if job is None:
        return _refused(
            Dropped(
                f"generator {generator.name!r} does not make job {start.job.name!r} any more: let it depend on nothing"
                " but ctx and the checkout"
            ),
        )
    if ask.shape(lowered_job(job, workflow, ask.locator(start.kici_dir))) != ask.shape(start.job):
        return _refused(
            Differs(
                f"generator {generator.name!r} makes job {job.name!r} with other steps than before: let it depend on"
                " nothing but ctx and the checkout"
            ),
        )
    return Found(replace(workflow, jobs=(*workflow.jobs, *jobs)), job)


def _as_when_asked(workflow: Workflow, generator: str, start: Start, environment: Environment) -> None:
    """The environment that the generator had when it was asked, for its one act: not that of the job that it made, or a
    generator that reads variables would make others now."""
    asked = evaluation.init_name(generator)
    fields = templates.fields(start.context.event, workflow=workflow.name, job=asked, matrix={})
    for name in start.job.env:
        template = workflow.env.get(name)
        environment.for_this_step(name, None if template is None else templates.expand(template, fields))
    environment.for_this_step("KICI_JOB", asked)
    environment.for_this_step("KICI_JOB_NAME", asked)


def _refused(error: KiciError) -> Ended:
    return Ended("failed", str(error), exception=error)
