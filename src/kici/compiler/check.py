"""What the orchestrator would refuse, said at the author's line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kici.compiler.diagnostics import Diagnostic
from kici.engine import matrix, permissions, plan, templates
from kici.engine.errors import EngineError
from kici.engine.lockfile import MAX_JOBS_PER_WORKFLOW, Level, LockFile, LockJob, LockWorkflow, SourceLocation

_SAID_BEFORE = re.compile(
    r"(which is not among the workflow's jobs|it has no jobs|has no steps)$|two (jobs|steps) called|two jobs are called"
    r"|^(a schedule: |a trigger's |input ')"
)
"""With a better place, by the definitions, the lowering or `_same_names`."""


def problems(workflows: Sequence[LockWorkflow]) -> Iterator[Diagnostic]:
    """`engine.plan.validate` with locations, and what only the author's side can know."""
    first: dict[str, LockWorkflow] = {}
    for workflow in workflows:
        other = first.setdefault(workflow.name, workflow)
        if other is not workflow:
            where = f"{other.source.file}:{other.source.line}"
            yield _at(workflow.source, workflow, f"{where} has a workflow of this name already: rename one")
        yield from _same_names(workflow)
        yield from _by_the_engine(workflow)
        yield from _beyond_the_engine(workflow)


def registries(workflows: Sequence[LockWorkflow], files: Mapping[str, bytes]) -> Iterator[Diagnostic]:
    """Those that no index of `.kici/pyproject.toml` answers to. `files`: path below `.kici/` → content."""
    if not any(workflow.registries for workflow in workflows):
        return
    from kici.dependencies import declared  # late: few repositories have them
    from kici.dependencies import registries as private

    project = files.get(declared.PROJECT)
    for workflow in workflows:
        for registry in workflow.registries:
            if found := private.problem(project, registry):
                yield _at(workflow.source, workflow, found)


def warnings(workflows: Sequence[LockWorkflow]) -> Iterator[Diagnostic]:
    for workflow in workflows:
        if not workflow.triggers:
            yield _at(workflow.source, workflow, "it has no triggers, so nothing starts it: write on=manual() at least")
        for job in workflow.jobs:
            if any(step.caches for step in job.steps):
                for level, does in ((Level.READ, "restored"), (Level.WRITE, "saved")):
                    if found := permissions.refusal(workflow.name, workflow.permissions, "caches", level):
                        message = f"job {job.name!r}: its cache is never {does}: {found}"
                        yield _at(job.location or workflow.source, workflow, message)
            if "matrix" not in job.dynamic and job.matrix is None and not job.include:
                for option, given in (("max_parallel", job.max_parallel is not None), ("fail_fast", job.fail_fast)):
                    if given:
                        message = f"job {job.name!r}: it has no matrix, so {option} does nothing: leave it out"
                        yield _at(job.location or workflow.source, workflow, message)
            for group in job.parallel:
                if group.size == 1:
                    message = f"job {job.name!r}: the group {group.name!r} has one step: write the step itself"
                    yield _at(job.location or workflow.source, workflow, message)


def notes(workflows: Sequence[LockWorkflow]) -> Iterator[Diagnostic]:
    """What is decided while the run goes, and what that costs."""
    for workflow in workflows:
        for job in workflow.jobs:
            if job.dynamic:
                message = (
                    f"job {job.name!r}: {' and '.join(job.dynamic)} {'is' if len(job.dynamic) == 1 else 'are'} given by"
                    f" a function, so a job `init: {job.name}` asks it on an agent first, which takes some seconds"
                )
                yield _at(job.location or workflow.source, workflow, message)
        for generator in workflow.generators:
            message = (
                f"jobs {generator.name!r} are made by a function, so a job `init: {generator.name}` calls it on an"
                " agent first, which takes some seconds"
            )
            yield _at(generator.location or workflow.source, workflow, message)


def _same_names(workflow: LockWorkflow) -> Iterator[Diagnostic]:
    first: dict[str, LockJob] = {}
    for job in workflow.jobs:
        other = first.setdefault(job.name, job)
        if other is not job:
            line = f" (line {other.location.line})" if other.location else ""
            yield _at(job.location or workflow.source, workflow, f"two jobs are called {job.name!r}{line}: rename one")
        names = [step.name for step in job.steps]
        for name in sorted({name for name in names if names.count(name) > 1}):
            message = f"job {job.name!r}: two of its steps are called {name!r}: rename one"
            yield _at(job.location or workflow.source, workflow, message)


def _by_the_engine(workflow: LockWorkflow) -> Iterator[Diagnostic]:
    """The engine's sentences say `workflow 'ci': job 'build' …`; the job's location is found by its name."""
    alone = LockFile(schema_version=1, content_hash="", files={}, workflows=(workflow,))
    for sentence in plan.validate(alone):
        message = sentence.removeprefix(f"workflow {workflow.name!r}: ")
        if _SAID_BEFORE.search(message):
            continue
        job = next((one for one in workflow.jobs if message.startswith(f"job {one.name!r}")), None)
        yield _at((job.location if job else None) or workflow.source, workflow, message)


def _beyond_the_engine(workflow: LockWorkflow) -> Iterator[Diagnostic]:
    if len(workflow.jobs) > MAX_JOBS_PER_WORKFLOW:
        message = f"it has {len(workflow.jobs)} jobs; the limit is {MAX_JOBS_PER_WORKFLOW}: split it"
        yield _at(workflow.source, workflow, message)
    instances: dict[str, LockJob] = {}
    for job in workflow.jobs:
        where = job.location or workflow.source
        dimensions = {*(job.matrix or {}), *(name for entry in job.include for name in entry)}
        for name in sorted(_matrix_placeholders(job) - dimensions):
            yield _at(
                where, workflow, f"job {job.name!r}: a template has {{matrix.{name}}}, but its matrix has no {name!r}"
            )
        for entry in job.exclude:
            for name in sorted(entry.keys() - dimensions):
                yield _at(where, workflow, f"job {job.name!r}: exclude names {name!r}, which its matrix does not have")
        for name in _instances(job):
            other = instances.setdefault(name, job)
            if other is not job and other.name != job.name:
                message = f"job {job.name!r}: one of its instances would be called {name!r}, as one of {other.name!r}"
                yield _at(where, workflow, message)


def _instances(job: LockJob) -> list[str]:
    if job.matrix is None and not job.include:
        return [job.name]
    try:
        return [f"{job.name} ({one.suffix})" for one in matrix.expand(job.matrix or {}, job.include, job.exclude)]
    except EngineError:  # said by the engine's own check
        return []


def _matrix_placeholders(job: LockJob) -> set[str]:
    written = [*job.env.values(), job.environment or "", job.concurrency.group if job.concurrency else ""]
    found: set[str] = set()
    for template in written:
        try:
            found |= templates.placeholders(template)
        except EngineError:  # said by the engine's own check
            continue
    return {name.removeprefix("matrix.") for name in found if name.startswith("matrix.")}


def _at(location: SourceLocation, workflow: LockWorkflow, message: str) -> Diagnostic:
    return Diagnostic(location.file, location.line, f"workflow {workflow.name!r}", message)
