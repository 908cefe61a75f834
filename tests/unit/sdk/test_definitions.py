from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import kici
from kici import Ctx, DefinitionError, Retry, job, labels, push, step
from kici.engine.lifecycle import TERMINAL_JOB
from kici.sdk import problems


@pytest.fixture
def noted() -> Iterator[list[problems.Refusal]]:
    """As in the compiler: what is wrong is noted, and the factories go on."""
    try:
        yield problems.collect()
    finally:
        problems._collected = None


anything: Any = kici
"""For calls that a type checker refuses."""


async def work(ctx: Ctx) -> int:
    return 1


def test_a_definition_knows_its_authors_line() -> None:
    made = [
        job("a", runs_on="linux", steps=["true"]),
        job(
            "b",
            runs_on="linux",
            steps=["true"],
        ),
    ]
    assert made[1].location.line - made[0].location.line == 1
    assert made[0].location.file == __file__
    assert step(work).location.line == work.__code__.co_firstlineno
    assert step("wrapped", functools.wraps(work)(lambda ctx: 1)).location == step(work).location


def test_definitions_are_frozen_and_compared_by_identity() -> None:
    one, other = (job("a", runs_on="linux", steps=["true"]) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2
    with pytest.raises(AttributeError):
        one.name = "b"  # type: ignore[misc]


def test_a_function_becomes_a_job_whose_one_step_has_its_name_and_its_time() -> None:
    made = job(runs_on="linux", timeout="2h")(work)
    assert (made.name, made.is_function) == ("work", True)
    assert [(one.name, one.fn, one.timeout_ms) for one in made.steps] == [("work", work, 7_200_000)]


def test_commands_are_named_by_their_first_words() -> None:
    made = job(
        "a",
        runs_on="linux",
        steps=["make clean", "make clean", "# why\nuv  run pytest -q tests/unit", "x" * 60, step("own", "make clean")],
    )
    assert [one.name for one in made.steps] == [
        "make clean",
        "make clean #2",
        "uv run pytest -q …",
        "x" * 48 + " …",
        "own",
    ]


def test_durations_are_what_people_write() -> None:
    made = [
        step("a", "true", timeout=value) for value in ("90s", "1h30m", "500ms", 1.5, timedelta(minutes=2), "1 h 5 m")
    ]
    assert [one.timeout_ms for one in made] == [90_000, 5_400_000, 500, 1_500, 120_000, 3_900_000]


@pytest.mark.parametrize(
    "value", ["", "20", "m20", "20 minuts", "-5m", 0, -1, True, float("nan"), float("inf"), "400d"]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step 'a': timeout: .* is not a duration"):
        step("a", "true", timeout=value)


def test_a_number_of_attempts_is_short_for_retry() -> None:
    assert step("a", "true", retry=3).retry == Retry(3)
    assert step("a", "true", retry=1).retry is None
    assert Retry(3, delay="2s", max_delay=timedelta(minutes=1)).max_delay_ms == 60_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"attempts": 0}, "attempts is 0"),
        ({"attempts": 2, "delay": "soon"}, "delay: 'soon' is not a duration"),
        ({"attempts": 2, "backoff": "exponental"}, r"did you mean 'exponential'\?"),
        ({"attempts": 2, "when": 5}, "when is 5"),
    ],
)
def test_a_wrong_retry_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Retry(**arguments)


def test_needs_take_jobs_names_and_conditions() -> None:
    first = job("first", runs_on="linux", steps=["true"])
    made = job("x", runs_on="linux", steps=["true"], needs=[first, "second"])
    assert [(need.name, need.run_on) for need in made.needs] == [("first", ("success",)), ("second", ("success",))]
    assert first.when("on_failure").run_on == ("failed", "timed_out_stale", "drift_dropped", "infra_lost")
    assert first.when("on_skip").run_on == ("success", "skipped")
    assert first.when({"skipped", "success"}).run_on == ("success", "skipped")
    assert first.when("failed").run_on == ("failed",)
    assert set(first.when("always").run_on) == TERMINAL_JOB
    with pytest.raises(DefinitionError, match=r"did you mean 'always'\?"):
        first.when("alway")  # type: ignore[arg-type]


def test_a_matrix_is_text_and_a_list_is_one_dimension() -> None:
    made = job("a", runs_on="linux", steps=["true"], matrix={"n": [1, 2], "flag": [True]}, include=[{"n": 3}])
    assert (made.matrix, made.include) == ({"n": ("1", "2"), "flag": ("true",)}, ({"n": "3"},))
    assert job("a", runs_on="linux", steps=["true"], matrix=["x"]).matrix == {"value": ("x",)}


def test_tags_alone_do_not_let_branches_pass() -> None:
    assert push(tags="v*").branches is None
    assert push().branches == ()
    assert push(branches="main", tags="v*").branches == ("main",)
    assert push(branches="main").tags is None


def test_labels_are_sorted_into_required_and_excluded() -> None:
    gpu = re.compile("gpu")
    assert job("a", runs_on=["linux", "!slow"], steps=["true"]).runs_on == labels("linux", not_="slow")
    assert labels("linux", gpu, not_=[gpu]).excluded == (gpu,)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: anything.job("a", runs_on="", steps=["true"]), "runs_on"),
        (lambda: anything.job("a", runs_on=[], steps=["true"]), "runs_on is empty"),
        (lambda: anything.job("a", runs_on="!slow", steps=["true"]), "only what to avoid"),
        (lambda: anything.job("a", steps=["true"]), 'runs_on="linux"'),
        (lambda: anything.job("a", runs_on="linux", steps=[]), "no steps"),
        (lambda: anything.job("a", runs_on="linux", steps=[5]), r"steps\[0\] is 5"),
        (lambda: anything.job("a", runs_on="linux", steps="make"), "write a list"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], need=[]), r"did you mean 'needs'\?"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], services="x"), "'services' is not there yet"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], matrix={"python": [3.10]}), '"3.1"'),
        (lambda: anything.concurrency(lambda ctx: "x"), "write a template"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], env={"a-b": "x"}), "'a-b' cannot be the name"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], needs=["b", "b"]), "twice"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], priority="high"), "priority is 'high'"),
        (lambda: job("a", runs_on="linux", steps=["true"], max_parallel=0), "max_parallel is 0: write a whole number"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], max_parallel=True), "max_parallel is True"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], fail_fast="no"), "fail_fast is 'no'"),
        (lambda: anything.job("a\nb", runs_on="linux", steps=["true"]), "cannot be its name"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], sandbox="isolate"), r"did you mean 'isolated'\?"),
        (lambda: anything.job("a", runs_on="linux", steps=["true"], sandbox=True), "sandbox is True: write one of"),
        (lambda: anything.job(work), r"@job\(runs_on="),
        (lambda: anything.step("a", "  "), "command is empty"),
        (lambda: anything.step("a", 5), "step"),
        (lambda: anything.step(anything.step(work)), "step"),
        (lambda: anything.pr(events="openned"), r"did you mean 'opened'\?"),
        (lambda: anything.push(branches=5), "5 is no pattern"),
        (lambda: anything.push(paths=re.compile("x")), "this takes globs"),
        (lambda: anything.push(tags="v*", paths="src/**"), "a tag has no changed files"),
        (lambda: anything.generic_webhook(""), "name of the orchestrator's source"),
        (lambda: anything.concurrency("x", max=0), "max is 0"),
        (lambda: anything.concurrency("x", pending="latest"), "keep-latest"),
        (lambda: anything.concurrency(" "), "group is empty"),
        (lambda: anything.workflow("ci", jobs=[]), "no jobs"),
        (lambda: anything.workflow("ci", jobs=[work]), r"work is a function: put @job"),
        (
            lambda: anything.workflow(
                "ci", on=anything.push, jobs=[anything.job("a", runs_on="linux", steps=["true"])]
            ),
            r"call it: push\(…\)",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_to_write(make: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        make()


def test_the_compiler_gets_every_refusal_with_its_line(noted: list[problems.Refusal]) -> None:
    made = job("a", runs_on="", steps=[5], timeout="soon")  # type: ignore[list-item]
    assert made.timeout_ms is None
    assert [refusal.location for refusal in noted] == [made.location] * len(noted)
    assert len(noted) == 4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("only_on_first_host", "kici has no 'only_on_first_host' yet"),
        ("fixture", "write `from kici.testing import fixture`"),
    ],
)
def test_a_name_that_comes_later_or_stands_elsewhere_says_so(name: str, said: str) -> None:
    with pytest.raises(ImportError, match=said):
        getattr(kici, name)
    with pytest.raises(ImportError, match=said):
        exec(f"from kici import {name}")


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kici.nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(kici, "__wrapped__")


@pytest.mark.parametrize("path", ["/etc", "~/x", "../other", "packages/../..", "a\\b", "", 5])
def test_a_working_directory_is_a_path_below_the_checkout(path: Any) -> None:
    with pytest.raises(DefinitionError, match="working_directory is "):
        step("a", "true", working_directory=path)


def test_a_shell_is_one_of_those_that_are_there() -> None:
    assert step("a", "true", shell="sh").shell == "sh"
    with pytest.raises(DefinitionError, match="shell: there is no 'zsh'"):
        step("a", "true", shell="zsh")  # type: ignore[call-overload]
