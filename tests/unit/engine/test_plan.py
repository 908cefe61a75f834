from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.events import Event, EventType
from kici.engine.lockfile import (
    LockConcurrency,
    LockFile,
    LockJob,
    LockNeed,
    LockStep,
    LockWorkflow,
    PushTrigger,
    Regex,
    SourceLocation,
)
from kici.engine.plan import plan, validate

PUSH = Event(type=EventType.PUSH, branch="main", sha="a" * 40)


def job(name: str, *needs: str, **options: Any) -> LockJob:
    options = {"steps": (LockStep("run"),), "runs_on": ("linux",)} | options
    return LockJob(name=name, needs=tuple(LockNeed(need) for need in needs), **options)


def workflow(*jobs: LockJob, **options: Any) -> LockWorkflow:
    return LockWorkflow("ci", SourceLocation(".kici/workflows/ci.py"), "ci", "hash", (PushTrigger(),), jobs, **options)


def problems(*jobs: LockJob, **options: Any) -> list[str]:
    return validate(LockFile(1, "hash", {}, (workflow(*jobs, **options),)))


def test_a_need_on_a_matrix_is_one_on_each_combination() -> None:
    planned = plan(workflow(job("build", matrix={"python": ("3.11", "3.13")}), job("deploy", "build")), PUSH)
    assert [one.name for one in planned.jobs] == ["build (3.11)", "build (3.13)", "deploy"]
    assert [need.upstream for need in planned.jobs[2].needs] == ["build (3.11)", "build (3.13)"]
    assert [one.position for one in planned.jobs] == [0, 1, 2]


def test_templates_are_expanded_for_each_combination() -> None:
    ci = workflow(
        job(
            "deploy",
            matrix={"zone": ("eu", "us")},
            environment="prod-{matrix.zone}",
            env={"REF": "{branch}", "SHARED": "job"},
            concurrency=LockConcurrency("{workflow}-{branch}"),
        ),
        env={"SHARED": "workflow", "WORKFLOW": "{workflow}"},
    )
    eu, _ = plan(ci, PUSH).jobs
    assert (eu.environment, eu.concurrency_group) == ("prod-eu", "ci-main")
    assert eu.env == {"SHARED": "job", "WORKFLOW": "ci", "REF": "main"}


def test_a_job_that_cannot_be_made_carries_its_problem() -> None:
    ci = workflow(
        job("none", matrix={"a": ("x",)}, exclude=({"a": "x"},)),
        job("deploy", concurrency=LockConcurrency("deploy-{tag}")),
        job("after", "none"),
    )
    none, deploy, after = plan(ci, PUSH).jobs
    assert "no combination" in none.problem
    assert "this event has no tag" in deploy.problem
    assert [need.upstream for need in after.needs] == ["none"]


def test_the_group_of_a_run_is_expanded_from_the_event() -> None:
    planned = plan(workflow(job("a"), concurrency=LockConcurrency("{workflow}-{branch}")), PUSH)
    assert (planned.concurrency_group, planned.concurrency_problem) == ("ci-main", "")


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("ci-{pr}", "this event has no pr"),
        ("ci-{job}", "this event has no job"),
        ("ci-{matrix.python}", "this event has no matrix.python"),
        (" ", "an empty name"),
        ("x" * 401, "has up to 400"),
    ],
)
def test_a_run_whose_group_cannot_be_said_carries_the_sentence(template: str, sentence: str) -> None:
    planned = plan(workflow(job("a"), concurrency=LockConcurrency(template)), PUSH)
    assert planned.concurrency_group == ""
    assert planned.concurrency_problem.startswith("the concurrency of workflow 'ci': template ")
    assert sentence in planned.concurrency_problem


def test_a_run_has_at_most_a_thousand_jobs() -> None:
    wide = {"a": tuple(map(str, range(256)))}
    assert (
        "1024 jobs; the limit is 1000" in plan(workflow(*(job(f"j{n}", matrix=wide) for n in range(4))), PUSH).problem
    )


def test_a_good_lock_file_has_no_problems() -> None:
    assert problems(job("a"), job("b", "a", matrix={"x": ("1",)})) == []


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ([job("a"), job("a")], "two jobs are called 'a'"),
        ([job("a", "b")], "job 'a' needs 'b', which is not among the workflow's jobs"),
        ([job("a", "a")], "job 'a' needs itself"),
        ([job("a", "b"), job("b", "c"), job("c", "a")], "jobs need each other in a circle: a → b → c → a"),
        ([job("a", runs_on=())], "job 'a' says no label in runs_on"),
        ([job("a", runs_on=("",))], "job 'a' says no label in runs_on"),
        ([job("a", steps=())], "job 'a' has no steps"),
        ([job("a", steps=(LockStep("x"), LockStep("x")))], "job 'a' has two steps called 'x'"),
        ([job("a", runs_on=(Regex("(?=x)"),))], "RE2 has no look-around"),
        ([job("a", matrix={"x": ()})], "the matrix has no combination"),
        ([job("a", env={"X": "{nope}"})], "there is no {nope}"),
        ([job("a", timeout_ms=0)], "a timeout that is not positive"),
        ([job("a", matrix={"x": ("1",)}, max_parallel=0)], "job 'a' has max_parallel 0; it is at least 1"),
        ([job("a", exclude_labels=("linux",))], "requires and excludes the label 'linux'"),
        ([job("a", concurrency=LockConcurrency("x", max=0))], "at least 1"),
        ([job("a", concurrency=LockConcurrency("x", pending="drop"))], "'keep-latest' or 'queue'"),
        ([], "it has no jobs"),
    ],
)
def test_a_bad_lock_file_says_what_is_wrong(jobs: list[LockJob], problem: str) -> None:
    assert any(problem in one for one in problems(*jobs)), problems(*jobs)


def test_needs_name_statuses_that_exist() -> None:
    bad = msgspec.structs.replace(job("b"), needs=(LockNeed("a", ("done",)),))
    assert any("end as done; a job ends as cancelled, drift_dropped, failed" in one for one in problems(job("a"), bad))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_a_circle_is_found_exactly_when_jobs_cannot_be_ordered(edges: list[tuple[int, int]]) -> None:
    needs = {str(n): sorted({str(b) for a, b in edges if a == n and b != n}) for n in range(8)}
    found = any("circle" in one for one in problems(*(job(name, *wanted) for name, wanted in needs.items())))
    left = {name: set(wanted) for name, wanted in needs.items()}
    while ready := [name for name, wanted in left.items() if not wanted]:
        for name in ready:
            del left[name]
            for wanted in left.values():
                wanted.discard(name)
    assert found == bool(left)
