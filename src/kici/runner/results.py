"""What steps have returned: of this job, and of the jobs that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from kici.engine.evaluation import MAX_OUTPUT_BYTES
from kici.sdk.errors import NoOutput, OutputInvalid, OutputsOfMany
from kici.sdk.facts import Matrix, Needed, NeededInstance, Output
from kici.sdk.generators import Generator
from kici.sdk.jobs import Job
from kici.sdk.outputs import from_data, return_type, to_data
from kici.sdk.steps import Step
from kici.sdk.workflows import Workflow
from kici.wire.context import NeededJob


class Results:
    def __init__(
        self, workflow: Workflow, job: Job[Any], needs: Sequence[NeededJob], *, limit: int = MAX_OUTPUT_BYTES
    ) -> None:
        """`limit`: bytes of all outputs of the job, encoded."""
        self._jobs = {one.name: one for one in workflow.jobs}
        self._groups = {one.name for one in workflow.generators}
        self._job = job
        self._limit = limit
        self._needs = {
            need.name: [one for one in needs if need.name in (one.job, one.generated_by)] for need in job.needs
        }
        self.own: dict[str, Any] = {}
        self._all: Results = self
        """Of the job; of a step in a group `own` has what was there when the group began, and what it returned."""

    def beside(self) -> Results:
        """For one of several steps that run at the same time: they do not see what the others return."""
        other = copy(self)
        other.own = dict(self.own)
        return other

    # ── written by the runner ────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, step: Step[Any], value: object, written: Mapping[str, str]) -> None:
        """What a step has returned, or else what it has written to `$KICI_OUTPUT`. Raises `OutputInvalid`."""
        annotation = return_type(step.fn) if step.fn else None
        if annotation in (None, type(None)) or (annotation is Any and value is None):
            if not written:
                return
            data: Any = dict(written)
        else:
            data = to_data(value, annotation)
        outputs = self._all.own | {step.name: data}
        size = len(msgspec.msgpack.encode(outputs))
        if size > self._limit:
            raise OutputInvalid(f"the job's outputs have {size:,} bytes; the limit is {self._limit:,}: use an artifact")
        self._all.own = outputs
        if self._all is not self:
            self.own[step.name] = data

    # ── read by steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def one(self, source: object, job: object) -> Any:
        job_name, step = self._find(source, job)
        if job_name == self._job.name:
            if step.name not in self.own:
                raise NoOutput(f"step {step.name!r} has not returned anything yet")
            return _rebuilt(step, self.own[step.name])
        instances = self._needs[job_name]
        if len(instances) > 1 or self._is_fanned(job_name):
            raise OutputsOfMany(f"job {job_name!r} runs once for each of its matrix: use ctx.outputs_all")
        if not instances or step.name not in instances[0].outputs:
            status = instances[0].status if instances else "skipped"
            raise NoOutput(f"step {step.name!r} of job {job_name!r} has returned nothing; the job ended as {status}")
        return _rebuilt(step, instances[0].outputs[step.name])

    def all(self, source: object, job: object) -> list[Output[Any]]:
        group = _name(source if job is None else job)
        if group in self._groups:
            return [_of_group(one, None if job is None else source) for one in self._of(group)]
        job_name, step = self._find(source, job, elsewhere=True)
        return [
            Output(
                one.name,
                one.status,
                Matrix(one.matrix),
                _rebuilt(step, one.outputs[step.name]) if step.name in one.outputs else msgspec.UNSET,
            )
            for one in self._needs[job_name]
        ]

    def _of(self, name: str) -> list[NeededJob]:
        self._check_needed(name)
        return self._needs[name]

    def _find(self, source: object, job: object, *, elsewhere: bool = False) -> tuple[str, Step[Any]]:
        wanted = _name(job) if job is not None else _name(source) if isinstance(source, (Job, Generator)) else None
        if wanted in self._groups:
            raise OutputsOfMany(f"{wanted!r} stands for all jobs that it makes: use ctx.outputs_all")
        if wanted is not None:
            if wanted != self._job.name or elsewhere:
                self._check_needed(wanted)
            places = [wanted]
        elif not elsewhere and self._steps(self._job.name, source):
            places = [self._job.name]
        else:
            places = [name for name in self._needs if self._steps(name, source)]
        found = [(place, step) for place in places for step in self._steps(place, source)]
        if not found:
            where = f"job {wanted!r}" if wanted else "this job, nor a job that it needs"
            raise KeyError(f"{_name(source)!r} is no step of {where}")
        if len(found) > 1:
            raise KeyError(f"{_name(source)!r} is a step of {', '.join(places)}: say which with job=…")
        return found[0]

    def _steps(self, job_name: str, source: object) -> list[Step[Any]]:
        steps = self._jobs[job_name].steps if job_name in self._jobs else ()
        if isinstance(source, Step):
            return [step for step in steps if step is source or (step.name, step.fn) == (source.name, source.fn)]
        return [step for step in steps if step.name == _name(source)]

    def _check_needed(self, name: str) -> None:
        if name not in self._needs:
            raise KeyError(f"job {name!r} is not among what this job needs: {', '.join(self._needs) or 'nothing'}")

    def _is_fanned(self, job_name: str) -> bool:
        found = self._jobs.get(job_name)
        return found is not None and bool(found.matrix or found.include or "matrix" in found.dynamic)

    @property
    def needs(self) -> NeedsView:
        return NeedsView(self._needs)


class NeedsView(Mapping[Any, Needed]):
    """A `kici.sdk.facts.Needs`."""

    def __init__(self, needs: Mapping[str, Sequence[NeededJob]]) -> None:
        self._needs = needs

    def __getitem__(self, job: object, /) -> Needed:
        name = _name(job)
        if name not in self._needs:
            raise KeyError(f"job {name!r} is not among what this job needs: {', '.join(self._needs) or 'nothing'}")
        return Needed(
            [NeededInstance(one.name, one.status, Matrix(one.matrix), one.outputs) for one in self._needs[name]]
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._needs)

    def __len__(self) -> int:
        return len(self._needs)

    def __contains__(self, job: object, /) -> bool:
        return _name(job) in self._needs


def _name(source: object) -> str:
    return source.name if isinstance(source, (Job, Step, Generator)) else str(source)


def _of_group(one: NeededJob, step: object) -> Output[Any]:
    """Of a job that a generator made. Without a step: the value of one that is a function, else the values of all of
    its steps."""
    value: Any = msgspec.UNSET
    if step is None and one.outputs:
        value = one.outputs.get(one.job, one.outputs)
    elif step is not None and _name(step) in one.outputs:
        value = one.outputs[_name(step)]
        value = _rebuilt(step, value) if isinstance(step, Step) else value
    return Output(one.name, one.status, Matrix(one.matrix), value)


def _rebuilt(step: Step[Any], data: object) -> Any:
    annotation = return_type(step.fn) if step.fn else Any
    return data if annotation in (None, type(None)) else from_data(data, annotation)
