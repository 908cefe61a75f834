from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine import permissions
from kici.engine.events import Event, EventType
from kici.engine.lockfile import Level, LockGenerator
from kici.engine.permissions import KINDS, refusal
from kici.engine.plan import Frame, fan_out, plan
from kici.engine.validation import job_problems
from kici.sdk import permissions as written
from tests.support.locks import job, workflow

PUSH = Event(EventType.PUSH, branch="main")
asked = st.sampled_from(
    [(kind, level) for kind, levels in KINDS.items() for level in levels if level is not Level.NONE]
)
said = st.dictionaries(st.sampled_from([*KINDS, "contents"]), st.sampled_from([*Level, "admin"]))


def test_a_workflow_that_says_nothing_lets_its_jobs_do_everything() -> None:
    assert refusal("ci", None, "caches", Level.WRITE) == ""


def test_what_is_not_named_is_refused_with_what_to_write() -> None:
    assert refusal("ci", {"artifacts": "write"}, "caches", Level.WRITE) == (
        "the workflow 'ci' gives its jobs no permission to save caches: permissions={'caches': 'write'} does"
    )


@given(said, asked)
def test_only_the_kind_itself_counts_and_a_higher_level_lets_what_stands_before_it(
    given_: dict[str, str], wanted: tuple[str, Level]
) -> None:
    kind, level = wanted
    alone = {kind: given_[kind]} if kind in given_ else {}
    assert refusal("ci", given_, kind, level) == refusal("ci", alone, kind, level)
    assert refusal("ci", {**given_, kind: Level.WRITE}, kind, level) == ""
    assert refusal("ci", {**given_, kind: "admin"}, kind, level)
    if not refusal("ci", given_, kind, Level.WRITE):
        assert not refusal("ci", given_, kind, Level.READ)
    assert bool(refusal("ci", given_, kind, level)) == (given_.get(kind) not in ("write", str(level)))


def test_the_kinds_and_levels_that_an_author_may_write_are_those_that_are_asked() -> None:
    assert {kind: tuple(map(str, levels)) for kind, levels in KINDS.items()} == written._LEVELS


def test_every_job_of_a_plan_has_what_its_workflow_says_also_the_one_that_asks_the_code() -> None:
    given_ = {"caches": Level.READ}
    ci = workflow(jobs=[job("a", matrix={"x": ("1", "2")}), job("b", dynamic=("env",))], permissions=given_)
    planned = plan(ci, PUSH)
    assert {one.name for one in planned.jobs} == {"a (1)", "a (2)", "init: b", "b"}
    assert all(one.job.permissions == given_ for one in planned.jobs if one.seed is None)
    (stand_in,) = [one for one in planned.jobs if one.seed is not None]
    assert stand_in.seed
    assert stand_in.seed.frame.permissions == given_


@pytest.mark.parametrize("of_workflow", [None, {}, {"caches": Level.READ}])
def test_a_job_that_a_generator_makes_cannot_give_itself_more(of_workflow: dict[str, Level] | None) -> None:
    made = job("made", permissions={"events": Level.WRITE})
    assert any("only its workflow" in problem for problem in job_problems(made, {}, ()))
    (planned,) = fan_out(Frame("ci", {}, of_workflow), made, PUSH)
    assert planned.job.permissions == of_workflow
    generated = workflow(jobs=[], generators=(LockGenerator("g", ("linux",)),), permissions=of_workflow)
    assert {one.seed.frame.permissions == of_workflow for one in plan(generated, PUSH).jobs if one.seed} == {True}


def test_a_lock_file_that_nobody_has_compiled_is_checked_too() -> None:
    assert list(permissions.problems(None)) == []
    assert list(permissions.problems({"caches": "read", "events": "write"})) == []
    assert list(permissions.problems({"contents": "read", "events": "read"})) == [
        "has permissions of 'contents'; there are artifacts, caches, events, secret_outputs",
        "has permissions events = 'read'; it is one of none, write",
    ]
