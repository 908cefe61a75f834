"""What an example promises, compared with what happened: a sentence for each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tests.examples.expectation import Preview, Run

ANYTHING = "*"


class JobEnd(Struct, frozen=True):
    status: str
    reason: str = ""
    outputs: Mapping[str, Any] = {}
    steps: Mapping[str, str] = {}


class RunEnd(Struct, frozen=True):
    status: str
    jobs: Mapping[str, JobEnd]
    artifacts: tuple[str, ...] | None = None
    """None where nobody can look them up."""


class Foreseen(Struct, frozen=True):
    """What `kici preview` says of an event."""

    runs: tuple[str, ...]
    skipped: Mapping[str, str]
    not_started: Mapping[str, str]


def of_preview(expected: Preview, said: Foreseen) -> Iterator[str]:
    yield from _names("would run", expected.runs, said.runs)
    for what, wanted, found in (
        ("would be skipped", expected.skipped, said.skipped),
        ("would not start", expected.not_started, said.not_started),
    ):
        yield from _names(what, tuple(wanted), tuple(found))
        for name in sorted(wanted.keys() & found.keys()):
            if wanted[name] not in found[name]:
                yield f"{name} {what}, but not because {wanted[name]!r}: {found[name]!r}"


def of_run(expected: Run, end: RunEnd) -> Iterator[str]:
    if end.status != expected.status:
        yield f"the run ended as {end.status}, not as {expected.status}"
    yield from _names("is a job of the run", tuple(expected.jobs), tuple(end.jobs))
    for name in sorted(expected.jobs.keys() & end.jobs.keys()):
        wanted, job = expected.jobs[name], end.jobs[name]
        allowed = (wanted,) if isinstance(wanted, str) else wanted
        if job.status not in allowed:
            yield f"{name} ended as {job.status}, not as {' or '.join(allowed)}: {job.reason or 'no reason is said'}"
        if expected.reasons.get(name, "") not in job.reason:
            yield f"{name} says {job.reason!r}, which has no {expected.reasons[name]!r}"
        for step, status in expected.steps.get(name, {}).items():
            if job.steps.get(step) != status:
                yield f"step {step!r} of {name} ended as {job.steps.get(step)}, not as {status}"
        for step, value in expected.outputs.get(name, {}).items():
            yield from _value(f"output {step} of {name}", value, job.outputs.get(step))
    named = expected.outputs.keys() | expected.reasons.keys() | expected.steps.keys()
    for name in sorted(named - expected.jobs.keys()):
        yield f"something is expected of {name}, which is not among the expected jobs"
    if end.artifacts is not None:
        yield from _names("is an artifact", expected.artifacts, end.artifacts)


def _names(what: str, expected: tuple[str, ...], found: tuple[str, ...]) -> Iterator[str]:
    for name in sorted(set(expected) - set(found)):
        yield f"{name} was expected and is not there: it {what}"
    for name in sorted(set(found) - set(expected)):
        yield f"{name} was not expected: it {what}"


def _value(what: str, expected: Any, found: Any) -> Iterator[str]:
    if expected == ANYTHING and found is not None:
        return
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted(expected.keys() | found.keys()):
            yield from _value(f"{what}, {key}", expected.get(key), found.get(key))
    elif expected != found:
        yield f"{what} is {found!r}, not {expected!r}"
