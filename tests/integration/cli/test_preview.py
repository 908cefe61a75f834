"""`kici preview`: what would run, and why not, for each kind of event."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kici.cli.main import program
from kici.program import run

WORKFLOWS = """
from kici import dispatch, generic_webhook, job, manual, pr, push, tag, workflow
lint = job("lint", runs_on="linux", steps=["true"])
test = job("test", runs_on=["linux", "gpu"], needs=[lint], steps=["true"])
branch = workflow("branch", on=push(branches=["main", "!old"], paths=["src/**", "!**/*.md"]), jobs=[lint, test])
request = workflow("request", on=pr(target="main", events="opened", paths="src/**"), jobs=[lint])
release = workflow("release", on=tag("v*"), jobs=[lint])
hand = workflow("hand", on=manual(), jobs=[lint])
all = job("all", runs_on="linux", matrix={"n": ["1", "2"]}, max_parallel=1, fail_fast=True, steps=["true"])
wide = workflow("wide", on=tag("wide-*"), jobs=[all])
sent = workflow("sent", on=[dispatch(types="deploy"), generic_webhook("registry", events="pushed")], jobs=[lint])
"""
Preview: TypeAlias = Callable[..., str]


@pytest.fixture
def preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Preview:
    (tmp_path / ".kici/workflows").mkdir(parents=True)
    (tmp_path / ".kici/workflows/ci.py").write_text(WORKFLOWS)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        assert run(program, "kici", ["preview", *arguments]) == 0
        return capsys.readouterr().out

    return call


def matched(answer: str) -> list[str]:
    return [line.split(":")[0].removeprefix("✓ ") for line in answer.splitlines() if line.startswith("✓ ")]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--changed", "src/a.py"], ["branch"]),
        (["--changed", "src/a.md", "--changed", "src/a.py"], ["branch"]),
        (["--changed", "src/a.md"], []),
        (["--ref", "feature", "--changed", "src/a.py"], []),
        (["--event", "pr", "--ref", "feature", "--changed", "src/a.py"], ["request"]),
        (["--event", "pr", "--target", "release", "--changed", "src/a.py"], []),
        (["--event", "pr", "--action", "closed"], []),
        (["--event", "tag", "--ref", "v1"], ["release"]),
        (["--event", "tag", "--ref", "nightly"], []),
        (["--event", "manual", "--workflow", "hand"], ["hand"]),
        (["--event", "manual", "--workflow", "branch"], []),
        (["--event", "dispatch", "--name", "deploy"], ["sent"]),
        (["--event", "generic_webhook", "--source", "registry", "--name", "pushed"], ["sent"]),
        (["--event", "generic_webhook", "--source", "elsewhere", "--name", "pushed"], []),
    ],
)
def test_an_event_starts_the_workflows_whose_filters_it_passes(
    preview: Preview, arguments: list[str], names: list[str]
) -> None:
    assert matched(preview(*arguments)) == names


def test_jobs_are_shown_with_their_labels_and_needs(preview: Preview) -> None:
    answer = preview("--changed", "src/a.py", "--workflow", "branch")
    assert answer.splitlines() == [
        "✓ branch: Matched trigger 1 (push)",
        "    lint  on kici:os:linux",
        "    test  on gpu, kici:os:linux  after lint",
    ]


def test_a_limited_fan_out_says_so(preview: Preview) -> None:
    arguments = ("--event", "tag", "--ref", "wide-1", "--workflow", "wide")
    assert preview(*arguments).splitlines()[1:] == [
        "    all (1)  on kici:os:linux  at most 1 at once  halts the others if it fails",
        "    all (2)  on kici:os:linux  at most 1 at once  halts the others if it fails",
    ]
    (decided,) = json.loads(preview(*arguments, "--json"))
    assert [(job["maxParallel"], job["failFast"]) for job in decided["jobs"]] == [(1, True), (1, True)]


@pytest.mark.parametrize(
    ("workflow", "arguments", "reason"),
    [
        ("branch", ["--ref", "feature"], "branch: feature is not main, !old"),
        ("branch", ["--changed", "README.md"], "paths: README.md is not src/**, !**/*.md"),
        ("branch", ["--event", "tag", "--ref", "v1"], "event type: tag is not push"),
        ("request", ["--event", "pr", "--target", "release"], "target branch: release is not main"),
        ("request", ["--event", "pr", "--action", "closed"], "action: closed is not opened"),
        ("release", ["--event", "tag", "--ref", "nightly"], "tag pattern: nightly is not v*"),
        ("sent", ["--event", "dispatch", "--name", "build"], "dispatch type: build is not deploy"),
    ],
)
def test_what_does_not_run_says_which_filter_stopped_it(
    preview: Preview, workflow: str, arguments: list[str], reason: str
) -> None:
    first, *reasons = preview("--workflow", workflow, *arguments).splitlines()
    assert first == f"✗ {workflow}: No triggers matched"
    assert f"    {reason}" in reasons


def test_path_filters_let_pass_what_nobody_knows_and_say_so(preview: Preview) -> None:
    lines = preview("--workflow", "branch").splitlines()
    assert lines[0].startswith("✓ branch")
    assert lines[1].startswith("    warning: ")


def test_the_answer_as_json_has_the_same_decisions(preview: Preview) -> None:
    answer: list[dict[str, Any]] = json.loads(preview("--changed", "src/a.py", "--json"))
    assert {one["decision"]["workflow"]: one["decision"]["matched"] for one in answer} == {
        "branch": True,
        "request": False,
        "release": False,
        "hand": False,
        "wide": False,
        "sent": False,
    }
    lint, test = answer[0]["jobs"]
    assert (lint["name"], lint["needs"], lint["problem"]) == ("lint", [], "")
    assert (test["needs"], test["runsOn"]) == (["lint"], ["gpu", "kici:os:linux"])


def test_what_only_running_code_can_tell_is_said(tmp_path: Path, preview: Preview) -> None:
    (tmp_path / ".kici/workflows/dynamic.py").write_text(
        """
from kici import changed, job, jobs, push, workflow

test = job("test", runs_on="linux", matrix=lambda ctx: ["a"], env=lambda ctx: {}, steps=["true"])
docs = job("docs", runs_on="linux", rules=[changed("docs/**")], steps=["true"])

@jobs("shards", needs=[test])
def shards(ctx):
    yield test

after = job("after", runs_on="linux", needs=[shards], steps=["true"])
dynamic = workflow("dynamic", on=push(), jobs=[test, docs, shards, after])
"""
    )
    shown = preview("--workflow", "dynamic", "--changed", "src/a")
    assert "init: test  on kici:os:linux" in shown
    assert "test  on kici:os:linux  after init: test  env, matrix: decided by init: test" in shown
    assert "shards  on kici:os:linux  after test, init: shards  jobs: decided by init: shards" in shown
    assert "docs  on kici:os:linux  skipped: rule 'changed docs/**': no changed file matches docs/**" in shown
    assert "after  on kici:os:linux  after shards" in shown
    unknown = preview("--workflow", "dynamic")
    assert "warning: job 'docs': rule 'changed docs/**': it is not known which files changed" in unknown
    [found] = json.loads(preview("--workflow", "dynamic", "--json"))
    assert {one["name"]: one["dynamic"] for one in found["jobs"] if one["dynamic"]} == {
        "test": ["env", "matrix"],
        "shards": ["jobs"],
    }


ENDS = """
from kici import job, job_complete, manual, push, schedule, workflow, workflow_complete
lint = job("lint", runs_on="linux", steps=["true"])
ci = workflow("ci", on=push(), jobs=[lint])
after = workflow("after", on=workflow_complete("ci", status="failed"), jobs=[lint])
others = workflow("others", on=workflow_complete(), jobs=[lint])
each = workflow("each", on=job_complete(workflow="ci"), jobs=[lint])
nightly = workflow("nightly", on=schedule("@daily"), jobs=[lint])
weekly = workflow("weekly", on=[schedule("@weekly"), manual()], jobs=[lint])
"""


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        (("workflow_complete:failed", "--name", "ci"), {"after", "others"}),
        (("workflow_complete:success", "--name", "ci"), {"others"}),
        (("workflow_complete:failed", "--name", "others"), set()),
        (("job_complete", "--name", "ci"), {"each"}),
    ],
)
def test_the_end_of_a_workflow_starts_those_that_wait_for_it(
    tmp_path: Path, preview: Preview, options: tuple[str, ...], starts: set[str]
) -> None:
    (tmp_path / ".kici/workflows/ci.py").write_text(ENDS)
    found = json.loads(preview("--event", *options, "--json"))
    assert {one["decision"]["workflow"] for one in found if one["decision"]["matched"]} == starts


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("schedule", "a schedule is for one workflow: add --workflow nightly (or weekly)"),
        ("manual", "a start by hand is for one workflow: add --workflow weekly"),
    ],
)
def test_an_event_that_is_for_one_workflow_asks_which(
    tmp_path: Path, preview: Preview, capsys: pytest.CaptureFixture[str], kind: str, hint: str
) -> None:
    (tmp_path / ".kici/workflows/ci.py").write_text(ENDS)
    assert run(program, "kici", ["preview", "--event", kind]) == 0
    assert hint in capsys.readouterr().err
    assert run(program, "kici", ["preview", "--event", kind, "--workflow", "weekly"]) == 0
    said = capsys.readouterr()
    assert "✓ weekly" in said.out
    assert "add --workflow" not in said.err
