"""The harness of the examples notices what is not as promised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.examples import compare, expectation
from tests.examples.compare import Foreseen, JobEnd, RunEnd
from tests.examples.expectation import Preview, Run

EXPECTED = Run(
    event="push",
    workflow="ci",
    jobs={"build": "success", "test": ("success", "skipped")},
    reasons={"test": "this Python"},
    steps={"build": {"pack": "success"}},
    outputs={"build": {"wheel": {"version": "1.0", "sha256": "*"}}},
    artifacts=("wheel",),
)
STEPS = {"pack": "success", "check": "failed"}
BUILD = JobEnd("success", outputs={"wheel": {"version": "1.0", "sha256": "abc"}, "other": 1}, steps=STEPS)
TEST = JobEnd("skipped", "the agent has not this Python")


def difference(found: Iterable[str]) -> str:
    several = list(found)
    assert len(several) == 1, several
    return several[0]


@pytest.mark.parametrize("test", [TEST, JobEnd("success", "this Python")])
def test_a_run_as_promised_gives_no_sentence(test: JobEnd) -> None:
    assert list(compare.of_run(EXPECTED, RunEnd("success", {"build": BUILD, "test": test}, ("wheel",)))) == []


def test_artifacts_are_not_looked_at_where_none_are_kept() -> None:
    assert list(compare.of_run(EXPECTED, RunEnd("success", {"build": BUILD, "test": TEST}, None))) == []


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (RunEnd("failed", {"build": BUILD, "test": TEST}), "the run ended as failed, not as success"),
        (RunEnd("success", {"build": BUILD}), "test was expected and is not there: it is a job of the run"),
        (
            RunEnd("success", {"build": BUILD, "test": TEST, "more": TEST}),
            "more was not expected: it is a job of the run",
        ),
        (
            RunEnd("success", {"build": BUILD, "test": JobEnd("failed", "no this Python")}),
            "test ended as failed, not as success or skipped: no this Python",
        ),
        (
            RunEnd("success", {"build": BUILD, "test": JobEnd("skipped", "a need failed")}),
            "test says 'a need failed', which has no 'this Python'",
        ),
        (
            RunEnd("success", {"build": JobEnd("success", steps=STEPS), "test": TEST}),
            "output wheel of build is None, not {'version': '1.0', 'sha256': '*'}",
        ),
        (
            RunEnd(
                "success",
                {"build": JobEnd("success", outputs={"wheel": {"version": "1.0"}}, steps=STEPS), "test": TEST},
            ),
            "output wheel of build, sha256 is None, not '*'",
        ),
        (
            RunEnd("success", {"build": JobEnd("success", outputs=BUILD.outputs), "test": TEST}),
            "step 'pack' of build ended as None, not as success",
        ),
        (
            RunEnd("success", {"build": BUILD, "test": TEST}, ()),
            "wheel was expected and is not there: it is an artifact",
        ),
    ],
)
def test_each_difference_of_a_run_is_a_sentence(end: RunEnd, sentence: str) -> None:
    assert difference(compare.of_run(EXPECTED, end)) == sentence


def test_an_output_of_a_job_that_nobody_expects_is_a_mistake_of_the_example() -> None:
    expected = Run(event="push", workflow="ci", jobs={}, outputs={"buidl": {}})
    assert "buidl, which is not among" in difference(compare.of_run(expected, RunEnd("success", {})))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (Foreseen((), {"web": "changed packages/web/**"}, {}), "api was expected and is not there: it would run"),
        (Foreseen(("api",), {}, {}), "web was expected and is not there: it would be skipped"),
        (
            Foreseen(("api",), {"web": "a need"}, {}),
            "web would be skipped, but not because 'packages/web': 'a need'",
        ),
        (
            Foreseen(("api",), {"web": "changed packages/web/**"}, {"release": ""}),
            "release was not expected: it would not start",
        ),
    ],
)
def test_each_difference_of_a_preview_is_a_sentence(said: Foreseen, sentence: str) -> None:
    expected = Preview(options=(), runs=("api",), skipped={"web": "packages/web"})
    assert difference(compare.of_preview(expected, said)) == sentence


def test_an_example_says_where_it_runs_or_why_not(tmp_path: Path) -> None:
    (tmp_path / "example.toml").write_text('where = ["here"]\nruns = []\n')
    with pytest.raises(ValueError, match="not_on_an_agent"):
        expectation.read(tmp_path)


def test_every_example_of_the_repository_can_be_read_and_has_its_files() -> None:
    directories = sorted(
        path for path in (Path(__file__).parents[3] / "examples").iterdir() if path.is_dir() and path.name[0] != "."
    )
    for directory in directories:
        assert expectation.read(directory).runs, directory.name
        assert (directory / "README.md").exists(), directory.name
        assert (directory / ".kici/kici.lock.json").exists(), directory.name
