"""`kici.testing.plan`: the compiler's lowering and the engine's plan, in a test."""

from __future__ import annotations

import pytest

from kici import Ctx, changed, dispatch, job, manual, pr, push, tag, workflow
from kici.errors import KiciError
from kici.sdk.errors import DefinitionError
from kici.testing import (
    NotCompiled,
    dispatch_event,
    event,
    manual_event,
    plan,
    pr_event,
    push_event,
    tag_event,
    webhook_event,
)


@job(runs_on="linux")
async def lint(ctx: Ctx) -> None: ...


build = job(
    "build",
    runs_on=["linux", "gpu"],
    needs=[lint],
    matrix={"python": ["3.11", "3.13"]},
    env={"PY": "{matrix.python}"},
    steps=["uv sync", "uv build"],
)
deploy = job(
    "deploy", runs_on="linux", needs=[build], environment="production", concurrency="deploy-{branch}", steps=["./go"]
)
ci = workflow(
    "ci",
    on=[push(branches="main", paths="src/**"), pr(), tag("v*"), dispatch(types="go"), manual()],
    jobs=[lint, build, deploy],
)


def test_an_event_that_no_trigger_takes_runs_nothing_and_says_why() -> None:
    planned = plan(ci, push_event(branch="dev"))
    assert (planned.matched, planned.names) == (False, [])
    assert planned.skipped.keys() == {"lint", "build (3.11)", "build (3.13)", "deploy"}
    assert "branch: dev is not main" in planned.skipped["lint"]


def test_changed_files_decide_and_unknown_ones_let_it_pass() -> None:
    assert not plan(ci, push_event(changed=["README.md"])).matched
    assert plan(ci, push_event(changed=["src/a.py"])).matched
    unknown = plan(ci, push_event())
    assert unknown.matched
    assert unknown.decision.warnings


def test_the_jobs_are_shown_with_matrix_needs_labels_and_expanded_templates() -> None:
    planned = plan(ci, push_event(changed=["src/a.py"]))
    assert planned.names == ["lint", "build (3.11)", "build (3.13)", "deploy"]
    assert build in planned
    assert "build (3.11)" in planned
    assert "test" not in planned
    one = planned["build (3.13)"]
    assert (one.job, one.matrix, one.needs) == ("build", {"python": "3.13"}, ("lint",))
    assert one.steps == ("uv sync", "uv build")
    assert one.env == {"PY": "3.13"}
    assert planned["deploy"].needs == ("build (3.11)", "build (3.13)")
    assert (planned["deploy"].environment, planned["deploy"].concurrency) == ("production", "deploy-main")


def test_a_job_that_would_not_run_is_not_found_and_the_error_says_why() -> None:
    with pytest.raises(KeyError, match=r"deploy.*would not run.*branch"):
        plan(ci, push_event(branch="dev"))["deploy"]
    with pytest.raises(KeyError, match="no job 'tset' among lint"):
        plan(ci, push_event())["tset"]


@pytest.mark.parametrize(
    "happened", [pr_event(), tag_event(), dispatch_event("go"), manual_event(), manual_event(workflow="ci")]
)
def test_every_kind_of_event_has_a_maker_that_starts_what_waits_for_it(happened: object) -> None:
    assert plan(ci, happened).matched  # type: ignore[arg-type]


def test_a_generic_webhook_starts_nothing_here() -> None:
    assert not plan(ci, webhook_event("shop")).matched


def test_an_unknown_kind_or_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(KiciError, match="did you mean 'push'"):
        event("pusk")
    with pytest.raises(KiciError, match="did you mean 'branch'"):
        event("push", brunch="main")


def test_a_workflow_that_does_not_compile_is_refused_with_all_that_is_wrong() -> None:
    with pytest.raises(DefinitionError, match="not listed"):
        plan(workflow("x", on=push(), jobs=[build]), push_event())
    a = job("a", runs_on="linux", needs=["b"], steps=["x"])
    b = job("b", runs_on="linux", needs=["a"], env={"X": "{nothing}"}, steps=["x"])
    with pytest.raises(NotCompiled) as refused:
        plan(workflow("x", on=push(), jobs=[a, b]), push_event())
    assert "in a circle" in str(refused.value)
    assert "{nothing}" in str(refused.value)


def test_a_combination_that_cannot_be_made_is_told_apart_from_one_that_is_skipped() -> None:
    wrong = job("wrong", runs_on="linux", concurrency="x-{tag}", steps=["x"])
    after = job("after", runs_on="linux", needs=[wrong], steps=["x"])
    planned = plan(workflow("x", on=push(), jobs=[wrong, after]), push_event())
    assert planned.names == []
    assert "{tag}" in planned.failed["wrong"]
    assert "wrong ended as failed" in planned.skipped["after"]


def test_a_job_whose_files_did_not_change_is_skipped_with_what_needs_it() -> None:
    web = job("web", runs_on="linux", rules=changed("web/**"), steps=["x"])
    ship = job("ship", runs_on="linux", needs=[web], steps=["x"])
    planned = plan(workflow("x", on=push(), jobs=[web, ship]), push_event(changed=["src/a.py"]))
    assert planned.names == []
    assert "web/**" in planned.skipped["web"]
    assert "web ended as skipped" in planned.skipped["ship"]
