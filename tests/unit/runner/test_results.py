from __future__ import annotations

from dataclasses import dataclass

import pytest

from kici import Ctx, job, step, workflow
from kici.runner.results import Results
from kici.sdk.errors import NoOutput, OutputInvalid, OutputsOfMany
from kici.wire.context import NeededJob


@dataclass
class Wheel:
    version: str


@step
def make(ctx: Ctx) -> Wheel:
    return Wheel("1")


@job(runs_on="linux")
def lint(ctx: Ctx) -> int:
    return 1


first = job("first", runs_on="linux", steps=[make])
second = job("second", runs_on="linux", steps=[make, "echo"])
fan = job("fan", runs_on="linux", matrix={"n": ["1", "2"]}, steps=[make])
last = job("last", runs_on="linux", needs=[lint, first, second, fan], steps=["echo", step("own", lambda ctx: 3)])
ci = workflow("ci", jobs=[lint, first, second, fan, last])

NEEDS = (
    NeededJob("lint", "lint", "success", outputs={"lint": 7}),
    NeededJob("first", "first", "success", outputs={"make": {"version": "2"}}),
    NeededJob("second", "second", "failed"),
    NeededJob("fan (1)", "fan", "success", {"n": "1"}, {"make": {"version": "3"}}),
    NeededJob("fan (2)", "fan", "failed", {"n": "2"}),
)


@pytest.fixture
def results() -> Results:
    return Results(ci, last, NEEDS)


def test_a_function_job_s_value_is_found_by_the_job_or_its_name(results: Results) -> None:
    assert results.one(lint, None) == 7
    assert results.one("lint", None) == 7


def test_a_step_of_a_needed_job_is_rebuilt_as_its_annotation_says(results: Results) -> None:
    assert results.one(make, first) == Wheel("2")
    assert results.one("make", "first") == Wheel("2")


def test_a_step_that_several_needed_jobs_have_must_be_told_with_its_job(results: Results) -> None:
    with pytest.raises(KeyError, match="say which with job"):
        results.one(make, None)


def test_a_job_that_returned_nothing_has_no_output(results: Results) -> None:
    with pytest.raises(NoOutput, match="ended as failed"):
        results.one(make, second)


def test_a_fanned_out_job_has_many(results: Results) -> None:
    with pytest.raises(OutputsOfMany, match="outputs_all"):
        results.one(make, fan)
    found = results.all(make, fan)
    assert [(one.name, one.status, one.matrix.n) for one in found] == [
        ("fan (1)", "success", "1"),
        ("fan (2)", "failed", "2"),
    ]
    assert found[0].value == Wheel("3")
    with pytest.raises(NoOutput, match=r"look at \.status"):
        found[1].value  # noqa: B018


def test_what_is_not_needed_cannot_be_read(results: Results) -> None:
    with pytest.raises(KeyError, match="not among what this job needs: lint, first, second, fan"):
        results.one(make, "elsewhere")
    with pytest.raises(KeyError, match="'nothing' is no step of this job"):
        results.one("nothing", None)


def test_own_steps_come_first_and_only_after_they_returned(results: Results) -> None:
    own = last.steps[1]
    with pytest.raises(NoOutput, match="has not returned anything yet"):
        results.one(own, None)
    results.keep(own, 3, {})
    assert results.one("own", None) == 3
    assert results.own == {"own": 3}


def test_a_command_s_output_is_what_it_wrote_to_the_file(results: Results) -> None:
    results.keep(last.steps[0], None, {"a": "b"})
    assert results.one("echo", None) == {"a": "b"}


def test_outputs_have_a_limit(results: Results) -> None:
    with pytest.raises(OutputInvalid, match="the limit is 65,536: use an artifact"):
        results.keep(last.steps[1], "x" * 70_000, {})


def test_needs_tell_status_and_outputs(results: Results) -> None:
    assert results.needs[first].status == "success"
    assert results.needs["fan"].status == "failed"
    assert results.needs["first"].outputs == {"make": {"version": "2"}}
    assert list(results.needs) == ["lint", "first", "second", "fan"]
    assert first in results.needs
    assert "other" not in results.needs
